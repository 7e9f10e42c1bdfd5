CREATE TABLE customers (
    id          BIGINT PRIMARY KEY,
    name        TEXT NOT NULL,
    created_at  TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP
);

CREATE TABLE orders (
    id           BIGINT PRIMARY KEY,
    customer_id  BIGINT NOT NULL REFERENCES customers (id),
    total_cents  INTEGER NOT NULL CHECK (total_cents >= 0),
    ordered_on   DATE NOT NULL
);

CREATE INDEX orders_by_customer ON orders (customer_id, ordered_on DESC);

-- Customers by revenue in the last quarter, with their rank.
SELECT c.name,
       COUNT(*)                                          AS n_orders,
       SUM(o.total_cents) / 100.0                        AS revenue,
       RANK() OVER (ORDER BY SUM(o.total_cents) DESC)    AS place
FROM customers AS c
JOIN orders AS o ON o.customer_id = c.id
WHERE o.ordered_on >= DATE '2026-07-01'
  AND o.ordered_on <  DATE '2026-10-01'
GROUP BY c.id, c.name
HAVING SUM(o.total_cents) > 0
ORDER BY place, c.name
LIMIT 20;
