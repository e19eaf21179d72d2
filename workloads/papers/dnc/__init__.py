"""Divide-and-Conquer (Chandran, Bhat, Chakravarthy and Chandar, 2021)."""
