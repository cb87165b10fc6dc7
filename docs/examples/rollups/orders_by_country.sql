-- A team's own rollup: this file is all that it takes. Pulse computes it for every tenant's dataset of this
-- slug, for each day that changes, and serves it at /v1/datasets/orders/summary?rollup=by_country.
-- dataset: orders
-- grain: country
-- description: Events and amounts of the day by country.
SELECT country, count(*) AS events, sum(amount) AS amount
FROM events
GROUP BY country
