"""A small inventory: items, stock levels and a report."""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Item:
    sku: str
    name: str
    price_cents: int


@dataclass
class Inventory:
    items: dict[str, Item] = field(default_factory=dict)
    stock: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, item: Item, quantity: int = 0) -> None:
        if item.sku in self.items and self.items[item.sku] != item:
            raise ValueError(f"{item.sku} is already another item")
        self.items[item.sku] = item
        self.stock[item.sku] += quantity

    def remove(self, sku: str, quantity: int) -> None:
        if quantity > self.stock[sku]:
            raise ValueError(f"only {self.stock[sku]} of {sku} left, {quantity} wanted")
        self.stock[sku] -= quantity

    @property
    def value_cents(self) -> int:
        return sum(self.items[sku].price_cents * n for sku, n in self.stock.items())


def load(path: str) -> Inventory:
    inventory = Inventory()
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            price = round(float(row["price"]) * 100)
            inventory.add(Item(row["sku"], row["name"], price), int(row["quantity"]))
    return inventory


if __name__ == "__main__":
    stock = load(sys.argv[1])
    for sku in sorted(stock.items):
        print(f"{sku:>10}  {stock.items[sku].name:<30} {stock.stock[sku]:5d}")
    print(f"total value: {stock.value_cents / 100:.2f}")
