// Usage: limits, and what the tenant used by month.

import { read } from "./api.js";
import { h, put } from "./dom.js";
import { bytes, number, time, withSeparators } from "./format.js";
import { facts, fillWith, freshLine, notice, pending, section, table } from "./ui.js";

export function showUsage(main, context) {
  const body = h("div", {}, pending(8));
  put(main, h("h1", {}, "Usage"), body);
  const asOf = new Date().toISOString();
  fillWith(body, async () => {
    const usage = await read("/v1/usage", { signal: context.signal });
    const { limits } = usage;
    const limit = (value) => (value < 0 ? "unlimited" : number(Number(value)));
    const lines = usage.months.map((month) => [month.month.slice(0, 7), month.accepted === null ? "–" : number(month.accepted), number(month.landed), bytes(month.bytes), [month.landed_delta > 0 ? "+" : "", number(month.landed_delta)]]);
    return [
      freshLine(asOf, context.reload),
      usage.over_quota ? notice("warn", h("p", {}, `${withSeparators(usage.over_quota)} events had no place in their month, the first `, time(usage.over_quota_since), ". Ask the operators for more, then replay the dead letters over_quota.")) : null,
      section("Limits", facts([
        ["Datasets of events", [number(usage.datasets), " of ", limit(limits.maxDatasets)]],
        ["Datasets of entities", limit(limits.maxEntityDatasets)],
        ["Records per month", limit(limits.maxRecordsPerMonth)],
        ["Left this month", usage.remaining_records === null ? null : number(usage.remaining_records)],
        ["Requests per second", limit(limits.requestsPerSecond)],
        ["Events per second", limit(limits.eventsPerSecond)],
        ["Own tables", limit(limits.maxLakeTables)],
        ["Bytes of own tables", limits.maxLakeBytes < 0 ? "unlimited" : bytes(limits.maxLakeBytes)],
      ])),
      section("By month", lines.length ? table("Use by month", ["Month", "Accepted events", "Landed events", "Size of them", "Landed, against the month before"], lines, ["month", "number", "number", "number", "number"]) : h("p", { class: "quiet" }, "Nothing has landed yet.")),
      usage.months.some((month) => month.accepted === null) ? h("p", { class: "quiet" }, "Accepted events are counted while a monthly quota is set.") : null,
    ];
  });
}
