"""Functions of `import raysim`; a module is imported when one of its names is first used."""
