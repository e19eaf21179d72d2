"""Custom data, read from files in common formats without code.

`dataset` has the settings; `sources` finds the format of a path; `tables`, `arrays`, `pictures` and
`client_files` read one family of formats each, as batches of rows (`source`). `samples` makes
samples of them as the settings ask: `columns` are inputs, `targets` targets and clients, `division`
assigns rows to the training and the test set. `saved` is the dataset of Hugging Face's files.
"""
