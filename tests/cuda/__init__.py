"""A CUDA device made of CPU memory, and the tests on it; `device.py` says what it can show."""
