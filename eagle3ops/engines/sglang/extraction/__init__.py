"""How do the hidden states of whole prompts come out of SGLang at the speed at which it computes them?

Our plugin inside the server (assets/sglang_plugin/eagle3ops_extract.py, which says how a block lies in memory) puts
them into shared memory that this process made, and says so on a Unix socket. `spool` is this end of it: it checks each
block, sorts its tokens to their requests and gives the place back. `states` sends the requests. Nothing grows without
bound: the ring has a fixed size, and requests are sent only as far ahead as `ahead_bytes` allow. An end of the server,
of the connection or of a request is an error for whoever waits for rows.
"""
