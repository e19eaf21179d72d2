"""Random valid combinations of settings, each run in several ways that must agree.

- `drawing.py`: random settings over all components, drawn from their schemas
- `federations.py`: tiny tasks with ordinary and odd networks, and tiny datasets by settings
- `cases.py`: a case: its settings, what was refused before they were valid, and its ways to run
- `checks.py`: what must agree: resumed, grown, stacked and distributed runs, and the saved model
- `__main__.py`: the command line, `python -m tests.combinations --count 300 --seed 1`
- `test_combinations.py`: cases that run in the quick and in the full tests
"""
