"""Pool of Ray actors: the driver's executor, the actors, and their messages.

`ray_pool.ActorPool` is the executor; `actors.Actors` hands items to actors, waits for them and
replaces lost ones. On several nodes it does so twice: in the driver, where the actors are foremen,
and in each `foreman.Foreman`. `execution.scheduling` assigns the items for both.
"""
