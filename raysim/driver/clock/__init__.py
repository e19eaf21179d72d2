"""Virtual time of a run: the cost of its passes, and the policies that say when the server goes on.

In: the passes of a round, and the fleet. Out: the clients and epochs that count, and columns of
virtual seconds and joules. Imported by `driver.run`.
"""
