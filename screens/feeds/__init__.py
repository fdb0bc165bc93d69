"""What is known of the host, kept up to date for all rooms?"""
