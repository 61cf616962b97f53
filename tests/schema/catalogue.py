"""What PostgreSQL's catalogue says about the schema `afterturn`, in a form that can be compared."""

from __future__ import annotations

import asyncpg

# Each gives one column of text that holds everything about one object.
_QUERIES = {
    "relations": """
        select concat_ws(' ', c.relname, c.relkind, c.relpersistence, c.reloptions::text,
            c.relrowsecurity, c.relacl::text, obj_description(c.oid, 'pg_class'))
        from pg_class c where c.relnamespace = 'afterturn'::regnamespace
    """,
    "columns": """
        select concat_ws(' ', c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod),
            case when a.attnotnull then 'not null' end, a.attidentity, a.attgenerated,
            pg_get_expr(d.adbin, d.adrelid), l.collname, a.attstorage, a.attcompression)
        from pg_attribute a
        join pg_class c on c.oid = a.attrelid
        left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
        left join pg_collation l on l.oid = a.attcollation
        where c.relnamespace = 'afterturn'::regnamespace and c.relkind in ('r', 'p', 'v', 'm')
            and a.attnum > 0 and not a.attisdropped
    """,
    "constraints": """
        select concat_ws(' ', conrelid::regclass, conname, contype, convalidated,
            pg_get_constraintdef(oid))
        from pg_constraint where connamespace = 'afterturn'::regnamespace
    """,
    "indexes": """
        select concat_ws(' ', i.indisunique, i.indisvalid, pg_get_indexdef(i.indexrelid))
        from pg_index i join pg_class c on c.oid = i.indexrelid
        where c.relnamespace = 'afterturn'::regnamespace
    """,
    "functions": """
        select concat_ws(' ', pg_get_functiondef(oid), proacl::text)
        from pg_proc where pronamespace = 'afterturn'::regnamespace
    """,
    "triggers": """
        select pg_get_triggerdef(t.oid) from pg_trigger t join pg_class c on c.oid = t.tgrelid
        where c.relnamespace = 'afterturn'::regnamespace and not t.tgisinternal
    """,
    "types": """
        select concat_ws(' ', typname, typtype) from pg_type
        where typnamespace = 'afterturn'::regnamespace and typtype in ('d', 'e', 'r')
    """,
}


async def catalogue(url: str) -> dict[str, list[str]]:
    """Tables, columns, defaults, collations, constraints, indexes, functions by definition."""
    connection = await asyncpg.connect(url)
    try:
        return {
            name: sorted(row[0] for row in await connection.fetch(query))
            for name, query in _QUERIES.items()
        }
    finally:
        await connection.close()
