"""The allowed grammar of a team's query: sqlglot's node classes, and functions of Spark by name.

Everything else is refused: table functions, paths, reflection, hints, variables, scripts.
"""

from sqlglot import exp

NODES: tuple[type, ...] = (
    # the query
    exp.Select,
    exp.SetOperation,
    exp.Subquery,
    exp.With,
    exp.CTE,
    exp.From,
    exp.Join,
    exp.Where,
    exp.Group,
    exp.Having,
    exp.Order,
    exp.Ordered,
    exp.Limit,
    exp.Offset,
    exp.Distinct,
    exp.Qualify,
    exp.Lateral,
    exp.Cube,
    exp.Rollup,
    exp.GroupingSets,
    exp.TableAlias,
    exp.Alias,
    exp.Aliases,
    exp.Exists,
    # windows
    exp.Window,
    exp.WindowSpec,
    exp.Filter,
    exp.WithinGroup,
    exp.IgnoreNulls,
    exp.RespectNulls,
    # values
    exp.Column,
    exp.Identifier,
    exp.Star,
    exp.Literal,
    exp.Boolean,
    exp.Null,
    exp.Paren,
    exp.Tuple,
    exp.Dot,
    exp.Interval,
    exp.Var,
    exp.DataType,
    exp.DataTypeParam,
    exp.Bracket,
    exp.Slice,
    exp.Lambda,
    exp.Unary,
    exp.Binary,
    exp.Between,
    exp.In,
    exp.Predicate,
    exp.JSONPathPart,
    exp.JSONPath,
    exp.PropertyEQ,
    exp.Kwarg,
    exp.IntervalSpan,
    exp.ColumnDef,
    exp.Func,
)
_NOT_OF_A_DAY = ("Current", "Local", "Utc", "Session", "Rand", "Read", "AI", "ML", "Generate")
REFUSED: tuple[type, ...] = (
    # The result must not depend on when, where or for whom a day is computed.
    exp.Uniform,
    exp.Shuffle,
    exp.Uuid,
    exp.Secret,
    exp.ToFile,
    exp.Predict,
    exp.Parameter,
    exp.Placeholder,
    *(kind for name, kind in vars(exp).items() if isinstance(kind, type) and name.startswith(_NOT_OF_A_DAY)),
)
_FUNCTIONS = """
    aggregate array_agg array_append array_compact array_distinct array_except array_intersect array_join
    array_max array_min array_position array_remove array_repeat array_size array_sort array_union
    arrays_overlap arrays_zip bit_count bool_and bool_or bround cardinality char_length character_length
    collect_list collect_set contains count_min_sketch cume_dist date_diff date_from_unix_date date_part
    datediff datepart day dayofmonth dayofweek dayofyear degrees dense_rank element_at elt endswith every
    exists explode_outer filter find_in_set flatten forall format_number format_string from_unixtime
    get_json_object histogram_numeric hour hypot ifnull isnan isnotnull isnull json_array_length
    json_object_keys kurtosis last_day len levenshtein ln lower make_date map_concat map_entries map_filter
    map_from_entries max_by mean median min_by minute mode month months_between named_struct nanvl negative
    next_day nth_value ntile nullifzero nvl nvl2 octet_length overlay percent_rank percentile
    percentile_approx pmod positive power quarter radians rank regexp_count regexp_extract
    regexp_extract_all regexp_instr regexp_like regexp_replace regexp_substr regr_avgx regr_avgy regr_count
    regr_intercept regr_r2 regr_slope reverse rint round row_number rpad second sentences sequence sign
    signum size skewness slice some sort_array space split_part startswith std stddev struct substr
    substring_index timestamp_micros timestamp_millis timestamp_seconds to_char to_date to_number
    to_timestamp to_unix_timestamp transform transform_keys transform_values trunc try_add try_avg
    try_divide try_element_at try_multiply try_subtract try_sum try_to_number try_to_timestamp typeof
    unix_date unix_micros unix_millis unix_seconds unix_timestamp weekday weekofyear width_bucket xxhash64
    year zeroifnull zip_with
"""
FUNCTIONS = frozenset(_FUNCTIONS.split())
