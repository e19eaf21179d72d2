"""The pool of Ray actors: the driver's executor, the actors, and what they are sent.

`ray_pool.ActorPool` is the executor; `actors.Actors` hands work to actors, waits for them and
replaces those that are lost. On several nodes it does so twice: in the driver, whose actors are
then foremen, and in each `foreman.Foreman`. `execution.scheduling` decides for both who gets what.
"""
