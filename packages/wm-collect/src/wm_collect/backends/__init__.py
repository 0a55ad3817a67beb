"""One adapter per environment library; each turns an environment into a `Simulator`.

Nothing here imports an environment library before one of its environments is asked for.
"""
