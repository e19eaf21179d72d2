"""The driver: turns settings and a federation into a finished run.

In: settings, a federation, a run directory. Out: committed rounds, evaluated and checkpointed.
Imported by the facade (`raysim`) and `raysim.cli` alone; may import all of the engine but `cli`.

The walk of one update; dotted names stand below `raysim`. Down:

1. `driver.run.Run.rounds` takes a round's cohort, learning rate and generators from
   `driver.round_inputs.round_inputs` and takes the passes of the method's round from
   `driver.round_inputs.passes_of`: `methods.fedavg.FedAvg.round`, for example, yields each as a
   `core.rules.Pass`.
2. `driver.passes.RoundRunner.run` packs the tensors of the pass once into an
   `execution.messages.PassMessage`, with the state version that each client is to read, and
   puts clients into stacks (`training.stacked.stack_size.stacks_of`).
3. `execution.base.InlineExecutor.submit` or `execution.pool.ray_pool.ActorPool.submit` brings
   message and stacks to `execution.worker.Worker.train`. It opens the client's samples and reads
   its state (`storage.client_states.ClientStates.read`); both are in its `training.job.ClientJob`.
4. `training.sequential.SequentialTrainer.run` or `training.stacked.trainer.StackedTrainer.run`
   loads the tensors to start from and takes the steps (`training.sgd.Sgd.step`).

Up:

5. The method's `finish` turns the trained tensors into a `core.rules.Upload`. The worker checks it
   (`execution.partial_sum.PartialSum.check`), writes the client's state as a new version
   (`storage.client_states.ClientStates.write`) and adds the rest, weighted and exact
   (`execution.partial_sum.PartialSum.add`).
6. `execution.worker.Worker.take` hands over the sum of many clients; on several nodes,
   `execution.pool.foreman.Foreman.call` adds up those of a node. `RoundRunner.run` merges them
   (`execution.partial_sum.PartialSum.merge`), has stacks in which a client failed trained once
   more, and returns the means as `core.rules.Reduced` (`execution.partial_sum.PartialSum.reduced`).
7. `methods.fedavg.FedAvg.server_update` makes the server's next state of them.
8. `driver.evaluation.Evaluator.evaluate` evaluates it, `storage.recorder.RunRecorder.add` writes
   the round's rows, and `storage.checkpoints.Checkpoints.save` commits state and client versions;
   after an interruption `driver.run.commits.Commits.restore` goes back to there.
"""
