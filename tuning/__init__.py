"""Optuna studies on a Ray cluster: search spaces, tuner and slots."""

from raysim.display.notebook import import_ray

import_ray()  # before Optuna, which imports tqdm, too
