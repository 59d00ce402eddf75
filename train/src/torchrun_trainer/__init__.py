"""A small DDP trainer, run by torchrun on any number of unequal nodes."""

__version__ = "0.1.0"
