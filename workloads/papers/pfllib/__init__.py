"""PFLlib (Zhang, Liu, Hua, Wang, Song, Xue, Ma and Cao, JMLR, 2025)."""
