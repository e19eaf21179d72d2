"""Functions of `import raysim`; each module is imported when a name of it is first asked for."""
