"""`python -m torchrun_trainer`, and `torchrun -m torchrun_trainer`."""

from torchrun_trainer.cli import main

if __name__ == "__main__":
    main()
