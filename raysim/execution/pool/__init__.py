"""The pool of Ray actors: its schedule, the actors, and the driver's executor."""
