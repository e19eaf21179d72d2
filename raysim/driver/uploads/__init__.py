"""The way of an upload: one file for each concern, with the clients' and the server's part.

`dispatch` has the steps and their order. Imported by rounds and start.
"""
