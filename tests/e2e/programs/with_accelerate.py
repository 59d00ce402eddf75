"""A script in the manner of Accelerate's examples."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


def main():
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = TensorDataset(torch.rand(96, 8), torch.rand(96, 1))
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=8))
    for epoch in range(2):
        for source, target in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(source), target)
            accelerator.backward(loss)
            optimizer.step()
        total = accelerator.gather(loss.detach().reshape(1))
        accelerator.print(f"epoch {epoch}: {len(total)} processes, loss {total.mean().item():.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
