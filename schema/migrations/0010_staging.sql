-- Staging takes the covering paths and returns one value (schema/functions/30_turns.sql).

drop function if exists afterturn.stage_turn(
    text, text, bigint[], text, text, text, text[], jsonb, timestamptz, interval);
