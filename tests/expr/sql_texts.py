"""SQL expressions over the table of `sql_table.py`, evaluated by pylance and by lancetable: filters and values."""

from __future__ import annotations

_OPERATORS = ("=", "!=", "<", "<=", ">", ">=")

# column : constants to compare it with, separated by bars
_CONSTANTS = r"""
id : 0 | 2 | -1
i8 : 1 | -128 | 127
i16 : 7 | -300
i32 : 5 | -2147483648 | 2147483647
u8 : 0 | 255
u32 : 7 | 4294967295
u64 : 7 | 18446744073709551615
f16 : 0.5 | 0 | -1
f32 : 0.1 | 0 | 0.0 | 5
f : 0.1 | 0 | -0.0 | 2.5 | 5
g : 1 | 0.0 | -5.5 | 1e308 | cast('nan' as double) | cast('inf' as double)
dec : 0 | 1 | cast(1.25 as decimal(10,2))
s : 'abc' | 'it''s 50%_x' | '' | "a" | 'Z'
ls : 'a' | ''
dict : 'a' | 'bb'
b : true | false
d32 : date '2020-01-01' | date '1969-12-31' | timestamp '2020-01-01 00:00:00' | timestamp '2020-01-01 00:00:01'
d64 : date '2020-01-01' | date '1969-12-31'
ts : timestamp '2020-01-01 12:30:15.123456' | date '1970-01-01' | timestamp '2020-01-01T00:00:00+02:00'
tss : timestamp '2020-01-01 12:30:15' | date '1970-01-01' | timestamp(0) '1970-01-01 00:00:00'
tsn : timestamp(9) '2020-01-01 12:30:15.123456789' | date '1970-01-01'
tz : timestamp '2020-01-01 12:30:15.123456' | date '1970-01-01'
ny : timestamp '2020-01-01 07:30:15.123456' | date '1970-01-01' | timestamp '1969-12-31 19:00:00'
tm32 : 3600 | 0
tm64 : arrow_cast('01:00:00.000001','Time64(Microsecond)')
dur : arrow_cast(5,'Duration(Second)')
bin : x'6100' | x'ff' | 0x616263 | x''
fsb : x'6162' | X'00FF'
st.x : 4 | 1
st.y : 'p'
l : [1,2] | array[5]
"""

_PAIRS = """
id:i8 id:i32 i8:u8 u64:id u64:i8 u32:i32 id:f f32:f f:g f:f g:g i8:f32 id:num f16:f32 dec:id s:s2 s:ls s:dict
dict:dict b:b2 d32:ts d32:d64 ts:tss ts:tsn tz:ny ts:ny ts:tz bin:fsb l:l st:st st.x:id tm32:tm32 dur:dur
Foo:foo num:id
"""

_FILTERS = r"""
regexp_match(s, 'b')
regexp_match(s, 'b') AND k > 2
NOT regexp_match(s, 'b')
regexp_match(s, '(a)|b') OR b
regexp_match(s, 'b') = true
b
NOT b
b AND b2
b OR b2
NOT (b AND b2)
NOT (b OR b2)
b AND NULL
b OR NULL
b IS TRUE
b IS FALSE
b IS NOT TRUE
b IS NOT FALSE
b = true IS NULL
NOT b IS NULL
(b = b2) IS NULL
b IS DISTINCT FROM b2
true
false
id = 1 OR id = 2 AND b
(id = 1 OR id = 2) AND b
NOT id = 1 AND NOT b
NOT NOT b
id > 1 AND id < 4 AND s IS NOT NULL
id = 1 OR id = 2 OR id = 4
f = 0 OR f = 0.1 OR f = 7
2 > 1 = true
id > 1 IS TRUE
NULL IS NULL
1 = 1
1 = 2
NOT (f = 0.0 AND f != 0.0)
NULL
id
'a'
1
b = b2 = true
ID = 1
`id` = 1
`ID` = 1
`a b` = 2
FOO = 1
`Foo` = 1
foo = 1
fOO = 1
order = 2
nope = 1
st.nope = 1
ST.x = 4
st.X = 4
`st`.`x` = 4
`st.x` = 4
st['x'] = 4
st["x"] = 4
(st).x = 4
get_field(st,'x') = 4
"id" = 1
s = "it's 50%_x"
t.id = 1
id.x = 1
st IS NULL
st IS NOT NULL
l IS NULL
l[1] = 1
l[-1] = 2
l[0] IS NULL
l[9] IS NULL
l[id] = 1
l[2] IS NULL
lst[1] = 'a'
fsl[1] = 3.0
fsl[-1] < 0
id = 1 extra
id = 1)
id = 1; foo
id = 1;
id = 1 ORDER BY id
s = 'a' 'b'
id = 1_000
a = 1, b = 2

id =
id = 1 -- comment
id /* c */ = 1
id = ?
id = 1 AND
(id = 1
id IN ()
id IN (SELECT 1)
s = 'abc
id & 1 = 1
id | 1 = 1
id ^ 1 = 1
~id = 1
id <=> 1
id ** 2 = 1
id // 2 = 1
id MOD 2 = 1
b XOR b2
!b
s ~ 'a'
s RLIKE 'a'
s REGEXP 'a'
s SIMILAR TO 'a'
b IS UNKNOWN
id NOTNULL
id ISNULL
id = ANY(l)
(id, k) = (1, 0)
EXISTS (SELECT 1)
count(id) > 1
sum(id) > 1
row_number() over () = 1
nosuch(id) = 1
INTERVAL '1' DAY IS NULL
id == 1
id <> 1
id BETWEEN 3 AND 1
id NOT BETWEEN 2 AND 3
id BETWEEN SYMMETRIC 3 AND 1
+id = 1
-id = -1
- -id = 1
id = 9223372036854775807
u64 = 18446744073709551615
id = 1e0
x'61' = bin
E'a' = s
r'a' = s
N'a' = s
$1 = 1
i8 < 300
u8 > -1
id = 1.0
id > 1.5
id = '1'
id = true
f = '0.1'
f = true
dec = 1.25
dec = '1.25'
s = 1
b = 1
b = 'true'
d32 = '2020-01-01'
d32 = 18262
ts = '2020-01-01'
ts > 0
tm32 = '01:00:00'
tm64 = 5
tm64 = '01:00:00.000001'
dur = 5
bin = 'a'
fsb = x'61'
l = 1
st = 1
f32 = 1e40
f32 < 1e40
id + 0 > 1.5
id + 0 = '1'
d32 + 1 > '2020-01-01'
dec + 0 = 1.25
NOT id > 1.5
abs(id) = 1.0
cast(id as int) = '1'
i8 + 1 > 127
i8 + 1 = -128
upper(s) = 'ABC'
length(s) > 2
id * 2 > 4
id % 2 = 0
id / 2 = 1
k / 0 = 1
f / 0 > 1
id << 1 = 4
1 << 1 + 1 = 4
id + k > 5
id > k
u8 - 2 > 5
i8 = -128 AND i8 - 1 = 127
cast('2020-01-01' as date) = d32
d32 = cast('2020-01-01' as timestamp)
f32 = cast(0.1 as double)
f32 = cast(0.1 as float)
g IN (1, 0, NULL)
f IN (0)
f IN (-0.0)
g IN (cast('nan' as double))
isnan(f)
NOT isnan(f)
id IN (1, k, i8)
id IN (k)
id NOT IN (k, NULL)
s IN ('a', s2)
id IN (1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17)
s LIKE 'a%'
s LIKE '%b%'
s LIKE 'a_c'
s LIKE '_'
s LIKE 'É_z'
s LIKE '%50\%%'
s LIKE '%\_x'
s NOT LIKE 'a%'
NOT s LIKE 'a%'
s ILIKE 'A%'
s ILIKE 'é%'
s LIKE 'a%' ESCAPE '\'
s LIKE 'a!%' ESCAPE '!'
s LIKE s2
s2 LIKE s
s LIKE NULL
s LIKE ''
s LIKE 'abc'
ls LIKE 'a%'
dict LIKE 'a%'
id LIKE '1'
s LIKE '%'
s NOT ILIKE 'A%'
s || 'x' LIKE '%x'
starts_with(s, 'a')
ends_with(s, 'c')
contains(s, 'b')
starts_with(dict, 'a')
regexp_like(s, '^a')
regexp_like(s, 'A', 'i')
regexp_like(s, '\w{3}')
array_has(l, 3)
array_has(lst, 'b')
array_has(l, id)
array_length(l) = 2
coalesce(id, 9) = 9
nullif(id, 1) IS NULL
date_part('year', ts) = 2020
to_date(ts) = date '2020-01-01'
date_trunc('month', ts) = timestamp '2020-01-01 00:00:00'
greatest(id, k) > 3
least(id, k) = 0
round(f) = 0
cast(s2 as double) > 1
try_cast(s2 as double) > 1
cast(num as int) > 1
CASE WHEN b THEN 1 ELSE 0 END = 1
ceil(f) = 1
now() > ts
"""

_VALUES = r"""
1
1.5
'x'
true
NULL
9223372036854775808
18446744073709551616
x'00ff'
date '2020-02-30'
date '2020-02-29'
timestamp '2020-01-01 00:00:00'
timestamp(0) '2020-01-01 00:00:00'
timestamp(9) '2020-01-01 00:00:00'
[1,2]
['a']
[1, 2.5]
id + 1
i8 + 1
i8 - 1
i8 * 2
- i8
-u8
i8 + 1000
id + 1.5
f32 * 2
f32 + 0.1
f16 + 1
f + 1
u8 - 2
u8 + i8
u64 + id
u64 + u8
i8 + id
i32 * i32
id / 2
id / 2.0
-7 / 2
i32 / 2
i8 / -1
i32 % 3
-7 % 3
f % 2
g / 0
g % 0
i8 % -1
k % 2
id << 65
id >> 1
1 << 1 + 1
2 + 3 * 4
(2 + 3) * 4
10 - 3 - 2
dec + 1
dec * 2
dec / 3
dec % 1
dec - dec
dec * dec
dec / dec
dec + f
dec + id
d32 - d32
d32 + 1
ts - ts
ts - tss
dur + dur
ts + dur
dur * 2
ts - d32
s || s2
s || id
id || id
s || NULL
s || f
s || d32
s || b
ls || s
dict || 'x'
s || dec
s || ts
cast(f as bigint)
cast(dec as int)
cast(id as double)
cast(id as float)
cast(f as float)
cast(id as tinyint)
cast(i16 as tinyint)
try_cast(i16 as tinyint)
cast(u64 as bigint)
try_cast(u64 as bigint)
cast(id as int unsigned)
cast(k as bigint unsigned)
try_cast(f as int)
try_cast(g as bigint)
cast(num as bigint)
try_cast(s2 as int)
try_cast(s2 as double)
try_cast(s2 as decimal(5,1))
cast('+1' as int)
cast('1.5' as int)
cast(' 1' as int)
cast('1e3' as int)
cast('' as int)
cast('nan' as double)
cast('-Infinity' as double)
cast('1e3' as double)
cast(' 1.5 ' as double)
cast('t' as boolean)
cast('yes' as boolean)
cast('2' as boolean)
cast(id as boolean)
cast(f as boolean)
cast(b as int)
cast(b as double)
cast(1.255 as decimal(5,2))
cast('1.255' as decimal(5,2))
cast(-1.255 as decimal(5,2))
cast(f as decimal(5,1))
try_cast(f as decimal(5,1))
cast(id as decimal(10,2))
cast(dec as decimal(12,4))
cast(dec as decimal(10,1))
try_cast(dec as decimal(5,1))
cast(1234 as decimal(5,2))
try_cast(1234 as decimal(5,2))
cast('2020-1-1' as date)
cast('2020-01-01 10:00:00' as date)
cast('x' as date)
try_cast('x' as date)
cast(ts as date)
cast(tsn as date)
cast(ny as date)
cast(tz as date)
cast(d32 as timestamp)
cast('2020-01-01T10:00:00Z' as timestamp)
cast('2020-01-01 10:00:00+02:00' as timestamp)
cast('2020-01-01' as timestamp)
cast('2020-01-01 10:00' as timestamp)
cast('2020-01-01 10:00:00.123456789' as timestamp)
cast(ts as timestamp(0))
cast(tss as timestamp(9))
cast(ny as timestamp)
cast(id as timestamp)
cast(id as date)
cast(d32 as int)
cast(ts as bigint)
cast(tss as bigint)
cast(id as string)
cast(f as string)
cast(g as string)
cast(f32 as string)
cast(f16 as string)
cast(dec as string)
cast(b as string)
cast(d32 as string)
cast(d64 as string)
cast(ts as string)
cast(tss as string)
cast(tsn as string)
cast(tz as string)
cast(ny as string)
cast(tm32 as string)
cast(tm64 as string)
cast(dur as string)
cast(bin as string)
try_cast(bin as string)
cast(l as string)
cast(lst as string)
cast(st as string)
cast(u64 as string)
cast(1e20 as string)
cast(1e-7 as string)
cast(1e15 as string)
cast(1e16 as string)
cast(1e-5 as string)
cast(123456.789 as string)
cast(1e-6 as string)
cast(0.0001 as string)
cast(1.5e300 as string)
cast(s as binary)
cast(id as binary)
id::string
id::int::string
cast(id as varchar)
cast(id as bool)
cast(id as real)
cast(id as int8)
cast(id as decimal)
cast(id as decimal(40,2))
cast(id as float(10))
cast(id as datetime)
cast(ts as datetime(3))
cast(dict as string)
cast(num as date)
arrow_cast(id, 'Int8')
arrow_cast(id, 'Utf8')
arrow_cast(id, 'LargeUtf8')
arrow_cast(f, 'Float16')
arrow_cast(ts, 'Timestamp(Nanosecond, None)')
arrow_cast(tss, 'Timestamp(ns, "UTC")')
arrow_cast(s, 'Dictionary(Int32, Utf8)')
arrow_cast(5, 'Duration(Second)')
arrow_cast(id, 'UInt64')
arrow_cast(id, 'Nope')
arrow_cast('01:00:00','Time64(Microsecond)')
arrow_cast(id, 'Date32')
arrow_cast(d32, 'Date64')
arrow_cast(id, 'Decimal128(10, 2)')
arrow_cast(ts, 'Timestamp(us, "America/New_York")')
arrow_cast(ny, 'Timestamp(us, "UTC")')
coalesce(id, 0)
coalesce(i8, 0)
coalesce(f, id)
coalesce(s, 'x')
coalesce(NULL, id)
coalesce(f32, 0.5)
coalesce(dict, 'z')
ifnull(id, 0)
nvl(s, 'x')
nullif(id, 1)
nullif(g, 0.0)
nullif(s, 'a')
greatest(id, k)
least(id, k)
greatest(f, g)
least(f, g)
greatest(id, 2)
greatest(i8, 2)
greatest(s, s2)
least(d32, date '2000-01-01')
abs(id)
abs(i32)
abs(f)
abs(dec)
abs(u8)
abs(-5)
abs(i8)
abs(f32)
round(f)
round(g)
round(2.5)
round(-2.5)
round(id)
round(dec)
round(f32)
round(1.255, 2)
round(1234.5, -2)
round(dec, 1)
ceil(f)
floor(f)
lower(s)
upper(s2)
upper(ls)
lower(dict)
length(s)
length(ls)
length('É')
concat(s, s2)
concat(s, id)
concat('a', NULL)
concat(ls, s)
starts_with(s, 'a')
ends_with(s, s2)
contains(s, '')
contains(s, s2)
replace(s, 'b', 'XX')
replace(s, '', 'x')
replace(s, s2, 'Z')
left(s, 2)
left(s, -1)
left(s, 0)
left(s, k)
right(s, 2)
right(s, -1)
right(s, 0)
right(s, k)
btrim('  a ')
btrim('xax', 'x')
btrim(s, 'a')
trim('  a ')
substr(s, 2)
isnan(f)
isnan(f32)
isnan(id)
date_part('nope', ts)
to_timestamp(id)
to_timestamp(s)
to_timestamp('2020-01-01T00:00:00')
to_timestamp(d32)
to_timestamp(ts)
to_timestamp(f32)
to_timestamp(1.5)
to_date(ts)
to_date('2020-01-01')
to_date('2020-01-01 10:00:00')
to_date(k)
to_date(ny)
array_has(l, 3)
array_has(l, NULL)
array_has(lst, 'b')
array_has(fsl, 1.0)
array_length(l)
array_length(fsl)
get_field(st, 'x')
get_field(st, 'nope')
regexp_like(s, '[a-b]+')
regexp_like(s, s2)
regexp_like(s, '\d')
st.x
st['y']
l[1]
l[-1]
l[k]
fsl[2]
lst[1]
st
l
dict
ls
ny
`a b`
st.x + 1
b AND b2
id > 1
id IN (1, NULL)
s LIKE 'a%'
s IS NULL
NOT b
f = g
f > 0
id BETWEEN 1 AND 2
CASE WHEN id = 1 THEN 'a' ELSE s END
CASE id WHEN 1 THEN 10 END
extract(year from ts)
"""

_PARTS = (
    "year quarter month week day doy dow isodow isoyear hour minute second millisecond microsecond nanosecond epoch"
)
_TRUNCATIONS = "year quarter month week day hour minute second millisecond"


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


def _constants() -> dict[str, list[str]]:
    pairs = (line.partition(" : ") for line in _lines(_CONSTANTS))
    return {column: constants.split(" | ") for column, _, constants in pairs}


def _comparisons() -> list[str]:
    texts = []
    for column, constants in _constants().items():
        first, last = constants[0], constants[-1]
        texts += [f"{column} {operator} {constant}" for constant in constants for operator in _OPERATORS]
        texts += [
            f"{column} IN ({', '.join(constants)})",
            f"{column} NOT IN ({first})",
            f"{column} IN ({first}, NULL)",
            f"{column} NOT IN ({first}, NULL)",
            f"{column} BETWEEN {first} AND {last}",
            f"NOT {column} = {first}",
            f"{column} IS DISTINCT FROM {first}",
            f"{column} IS NOT DISTINCT FROM {first}",
            f"{column} IS NULL",
            f"{column} IS NOT NULL",
            f"{column} = NULL",
            f"{column} IS DISTINCT FROM NULL",
            f"{first} < {column}",
            f"{column} = {first} OR {column} IS NULL",
        ]
    return texts


def _column_pairs() -> list[str]:
    texts = []
    for left, _, right in (pair.partition(":") for pair in _PAIRS.split()):
        texts += [f"{left} {operator} {right}" for operator in _OPERATORS]
        texts += [f"{left} IS DISTINCT FROM {right}", f"{left} IN ({right})", f"NOT ({left} <= {right})"]
    return texts


def _date_functions() -> list[str]:
    parts = [
        f"date_part('{unit}', {column})"
        for unit in _PARTS.split()
        for column in ("ts", "tsn", "d32", "ny", "tss", "tm64", "tm32", "d64", "dur")
    ]
    truncated = [
        f"date_trunc('{unit}', {column})"
        for unit in _TRUNCATIONS.split()
        for column in ("ts", "d32", "ny", "tss", "tsn")
    ]
    return parts + truncated


_MORE_FUNCTIONS = r"""
pi()
power(f, 2)
pow(i32, 2)
power(2, 3)
power(f32, f)
atan2(f, g)
log(2, g)
log(10, i32)
trunc(f)
trunc(g, 1)
trunc(dec)
trunc(f32)
trunc(-2.57, 1)
nanvl(f, 0.5)
nanvl(f32, f32)
nanvl(g, f)
iszero(f)
iszero(i32)
iszero(g)
iszero(f32)
gcd(i32, 10)
lcm(i8, 10)
gcd(id, k)
lcm(id, 6)
gcd(i32, i16)
factorial(k)
factorial(5)
factorial(k + 18)
ascii(s)
ascii(s2)
ascii(ls)
ascii(dict)
octet_length(s)
octet_length(s2)
octet_length(ls)
octet_length(dict)
bit_length(s)
bit_length(s2)
bit_length(ls)
bit_length(dict)
ltrim(s)
ltrim(s2)
ltrim(ls)
ltrim(dict)
rtrim(s)
rtrim(s2)
rtrim(ls)
rtrim(dict)
reverse(s)
reverse(s2)
reverse(ls)
reverse(dict)
initcap(s)
initcap(s2)
initcap(ls)
initcap(dict)
char_length(s)
char_length(s2)
char_length(ls)
char_length(dict)
character_length(s)
character_length(s2)
character_length(ls)
character_length(dict)
md5(s)
md5(s2)
md5(ls)
md5(dict)
ltrim('  a ')
rtrim(' a  ')
lpad(s, 3)
lpad(s, 5, 'xy')
rpad(s, 5, 'xy')
rpad(s, 1)
lpad(s2, 4, '')
rpad(s, k)
repeat(s, 2)
repeat(s, k)
repeat(s, 0)
strpos(s, 'b')
strpos(s, s2)
instr(s, '5')
strpos(s, '')
find_in_set(s, 'x,a,abc')
find_in_set('', '')
split_part(s, 'b', 1)
split_part(s, 'b', 2)
split_part(s, ' ', -1)
split_part(s, '', 1)
split_part(s, 'b', k + 1)
substring_index(s, ' ', 1)
substring_index(s, ' ', -1)
substring_index(s, 'b', 0)
translate(s, 'ab', 'x')
translate(s, 'abc', 'xyz')
translate(s, 'aab', 'xyz')
levenshtein(s, s2)
levenshtein(s, 'abd')
chr(65)
chr(k + 65)
chr(0)
to_hex(id)
to_hex(k - 2)
to_hex(i32)
to_hex(255)
md5('a')
concat_ws('-', s, s2)
concat_ws(',', s, id)
concat_ws(s, s2, s)
concat_ws('-', s, NULL, 'x')
concat_ws('-', NULL, NULL)
regexp_count(s, 'a')
regexp_count(s, '[a-z]')
regexp_count(s2, '.')
regexp_replace(s, 'b', 'X')
regexp_replace(s, '[a-z]', 'X', 'g')
regexp_replace(s, '(b)(c)', '$2$1')
regexp_replace(s, '(b)(c)', '\2\1')
regexp_replace(s, 'B', 'x', 'i')
regexp_replace(s, '[a-z]', '', 'gi')
array_has_all(l, [1, 2])
array_has_any(l, [1, 7])
array_has_any(lst, ['b', 'x'])
array_has_all(lst, ['b', 'c'])
arrays_overlap(l, [3])
list_has_any(l, [1])
list_has_all(l, [1])
array_has_any(l, l)
array_has_all(l, l)
array_has_any(fsl, [1.0, 3.5])
empty(l)
empty(lst)
empty(fsl)
array_position(l, 2)
array_position(lst, 'c')
array_position(l, id)
array_contains(l, 1)
list_has(l, 3)
list_length(l)
array_has_any(l, [NULL])
array_has_all(l, [3, NULL])
array_has(l, NULL)
current_date = current_date()
today() = current_date()
to_timestamp_seconds(id)
to_timestamp_millis(id)
to_timestamp_micros(id)
to_timestamp_nanos(id)
to_timestamp_seconds(ts)
to_timestamp_millis('2020-01-01T00:00:00')
to_timestamp_millis(d32)
make_date(2020, 2, 29)
make_date(2019 + k, 1, 1)
make_date(2020, 13, 1)
make_date(id, 1, 1)
to_unixtime(ts)
to_unixtime(d32)
to_unixtime(tss)
to_unixtime('2020-01-01T00:00:01')
from_unixtime(id)
from_unixtime(0)
nvl2(s, s2, 'x')
nvl2(id, 1, 2)
nvl2(b, id, k)
nvl2(id, s, 'x')
datepart('year', ts)
datetrunc('month', ts)trunc(g / 10)
trunc(-0.5)
to_unixtime(ts)
log(2, f32)
regexp_match(s, 'b')
regexp_match(s, '(a)(b)')
regexp_match(s, 'B', 'i')
regexp_match(s, '(?:a)(b)')
regexp_match(s, '(?P<x>a)b')
regexp_match(s, '[(]')
regexp_match(s2, '\d+')
regexp_instr(s, 'b')
regexp_instr(s, 'z')
regexp_instr(s, 'nope')
array_has(l, 1)
array_has_any(lst, ['q'])
array_has_any(l, [1.0])
array_has_any(l, ['1'])
today() > date '2020-01-01'
current_date > date '2020-01-01'
ltrim(NULL)
sqrt(NULL)
sqrt(s)
"""


def _of_one_number() -> list[str]:
    names = "sqrt cbrt exp ln log log2 log10 sin cos tan cot asin acos atan sinh cosh tanh asinh acosh atanh degrees"
    texts = [
        f"{name}({column})"
        for name in [*names.split(), "radians", "signum"]
        for column in ("f", "f32", "i32", "dec", "g")
    ]
    # The last digits depend on the C library.
    return [text for text in texts if text not in {"cbrt(f32)", "cot(f32)", "cosh(f32)", "cosh(i32)", "asinh(f)"}]


FILTERS: list[str] = [*_comparisons(), *_column_pairs(), *_lines(_FILTERS), ""]
VALUES: list[str] = [*_lines(_VALUES), *_date_functions(), *_lines(_MORE_FUNCTIONS), *_of_one_number()]

# Intended differences from pylance 14, grouped by reason. Each expression also occurs above.
REFUSED_HERE: dict[str, list[str]] = {
    "pylance ignores text after the first expression": [
        "id = 1 extra",
        "id = 1)",
        "id = 1; foo",
        "id = 1;",
        "id = 1 ORDER BY id",
        "s = 'a' 'b'",
        "id = 1_000",
    ],
    "pylance extracts parts of durations": [
        f"date_part('{unit}', dur)"
        for unit in ["week", "day", "hour", "minute", "second", "millisecond", "microsecond", "nanosecond", "epoch"]
    ],
    "pylance casts a number to its bytes in memory": ["cast(id as binary)"],
    "pylance converts NaN to a timestamp": ["to_timestamp(f32)"],
}
ACCEPTED_HERE: dict[str, list[str]] = {
    "numbers are compared by value with all number columns": [
        "id = 1e0",
        "i8 < 300",
        "u8 > -1",
        "id = 1.0",
        "id > 1.5",
        "dec = 1.25",
        "tm64 = 5",
        "NOT tm32 = 3600",
        "i8 + 1000",
        "id + 1.5",
        "id / 2.0",
        "d32 + 1",
        "[1, 2.5]",
    ],
    "strings in ISO format are parsed as dates and times": [
        "d32 = '2020-01-01'",
        "ts = '2020-01-01'",
        "tm32 = '01:00:00'",
        "tm64 = '01:00:00.000001'",
    ],
    "binary values of another length are unequal": ["fsb = x'61'"],
    "forms and functions that only lancetable supports": [
        "+id = 1",
        "CASE WHEN b THEN 1 ELSE 0 END = 1",
        "CASE WHEN id = 1 THEN 'a' ELSE s END",
        "CASE id WHEN 1 THEN 10 END",
        "ceil(f) = 1",
        "ceil(f)",
        "floor(f)",
        "trim('  a ')",
        "substr(s, 2)",
        "extract(year from ts)",
        "to_timestamp(d32)",
        "to_timestamp_millis(d32)",
        "nvl2(b, id, k)",
    ],
}
ANSWERED_DIFFERENTLY: dict[str, list[str]] = {
    "0.0 equals -0.0, also between columns": [
        "f = g",
        "f != g",
        "f < g",
        "f >= g",
        "f IS DISTINCT FROM g",
        "f IN (g)",
        "greatest(f, g)",
    ],
    "a literal is rounded to the width of a float column, also under NOT": ["NOT f32 = 0.1"],
    "NaN is greater than all numbers, regardless of its sign": ["f / 0 > 1"],
    "each member of a list of mixed types is compared on its own": [
        "ny IN (timestamp '2020-01-01 07:30:15.123456', date '1970-01-01', timestamp '1969-12-31 19:00:00')"
    ],
    "null stays null; pylance simplifies `f = 0.0 AND f != 0.0` to false": ["NOT (f = 0.0 AND f != 0.0)"],
    "the difference has the unit of the timestamp": ["ts - d32"],
}
