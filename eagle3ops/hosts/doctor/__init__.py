"""What does a host have and lack, and what helps?"""
