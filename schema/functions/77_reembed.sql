-- Changing the model whose vectors this database holds.

-- Makes p_model the model: vectors of another one go, the content numbers of their paths move, and
-- every path that lacks vectors gets an embed job, in one transaction. Repeated for the model that
-- stands already, it enqueues what is left, so work that was broken off goes on. Readers serve the
-- old vectors until this commits and rank without vectors what has none after it.
--
-- It makes and takes jobs of every scope, so no erase ends beside it: each asks for this lock first,
-- and tries again when this is done. (The key is "afte" and a number; no path's is of two integers.)
--
-- No vector of the old model can come after: who has claimed a job loses it here, and who claims
-- one asks `standing_embedder` afterwards, which waits for this transaction.
create or replace function afterturn.begin_reembed(
    p_model text, p_dim integer, out replaced text, out removed bigint)
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    held text[];
begin
    perform afterturn.require_read_committed();
    perform pg_advisory_xact_lock(1634100325, 1);
    select i.embedder_model into replaced from afterturn.installation i for update;
    removed := 0;
    if replaced is distinct from p_model then
        update afterturn.installation set embedder_model = p_model, embedder_dim = p_dim;
        delete from afterturn.jobs j where j.id = any(array(
            select q.id from afterturn.jobs q
            where q.kind = 'embed' and q.finished_at is null and q.lease_token is not null
            order by q.id for update));
        held := array(select distinct m.path from afterturn.memories m
            where m.embedding is not null and not m.pending);
        with moved as materialized (select * from afterturn.move_content(held, false))
        update afterturn.memories m set embedding = null, content = moved.content
        from moved
        where m.path = moved.path and m.embedding is not null and not m.pending;
        get diagnostics removed = row_count;
    end if;
    perform afterturn.enqueue_embed(array(select distinct m.path from afterturn.memories m
        where m.embedding is null and not m.pending));
end $$;

-- The model as it stands once nobody is changing it.
create or replace function afterturn.standing_embedder(out model text, out dim integer)
language plpgsql set plan_cache_mode = force_generic_plan as $$
begin
    select i.embedder_model, i.embedder_dim into model, dim from afterturn.installation i for share;
end $$;
