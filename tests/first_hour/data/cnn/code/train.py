import argparse
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.dropout = nn.Dropout(0.25)
        self.fc = nn.Linear(16 * 4 * 4, 2)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc(self.dropout(x.flatten(1)))


def make_stripes(n):
    """Noisy images with horizontal (0) or vertical (1) stripes."""
    labels = torch.randint(0, 2, (n,))
    rows = torch.arange(16).remainder(4).lt(2).float().expand(16, 16)
    images = torch.where(labels.view(-1, 1, 1).bool(), rows, rows.T)
    return (images + 2.5 * torch.randn(n, 16, 16)).unsqueeze(1), labels


def evaluate(model, loader, device):
    model.eval()
    correct = 0
    with torch.no_grad():
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            correct += (model(images).argmax(1) == labels).sum().item()
    return correct / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--resume", default=None, help="path to a checkpoint")
    args = parser.parse_args()

    torch.manual_seed(42)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train_loader = DataLoader(TensorDataset(*make_stripes(2000)), batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(TensorDataset(*make_stripes(500)), batch_size=500)

    model = Net().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    start_epoch = 1
    if args.resume:
        checkpoint = torch.load(args.resume)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        start_epoch = checkpoint["epoch"] + 1

    os.makedirs("checkpoints", exist_ok=True)
    for epoch in range(start_epoch, args.epochs + 1):
        model.train()
        for images, labels in train_loader:
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        accuracy = evaluate(model, test_loader, device)
        print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {accuracy:.3f}")
        torch.save(
            {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()},
            f"checkpoints/ckpt_{epoch}.pt",
        )


if __name__ == "__main__":
    main()
