{{ config(materialized='incremental', unique_key='country', incremental_strategy='delete+insert') }}

SELECT country, count(*) AS orders, max(timestamp) AS newest
FROM {{ source('pulse', 'orders') }}
{% if is_incremental() %}
WHERE country IN (
  SELECT country FROM {{ source('pulse', 'orders') }} WHERE timestamp >= (SELECT max(newest) FROM {{ this }})
)
{% endif %}
GROUP BY country
