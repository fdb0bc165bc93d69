"""The console in a browser: a page on this machine's loopback, and one console process for each page that is open."""
