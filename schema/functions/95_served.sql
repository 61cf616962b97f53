-- Which releases these tables and functions serve, each known by the last migration that it has: from
-- the release before (`oldest`) to their own (`newest`). A process of an older one is refused when it
-- starts. Both numbers are raised with a release; before that, `newest` with each migration.
create or replace function afterturn.served(out oldest integer, out newest integer)
language sql immutable as $$ select 8, 9 $$;
