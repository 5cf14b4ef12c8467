-- min_reader: 1
-- The ledger, PostgreSQL 13 or newer. Same tables, columns and rules as ../sqlite/0001_ledger.sql.
--
-- The contract for applications is ../README.md. Everything is made in the current schema, and the functions keep
-- that schema as their search_path, whoever calls them.

SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);

------------------------------------------------------------------------------------------------ about the ledger

CREATE TABLE notify_schema (            -- one applied file of this folder
  version       INTEGER NOT NULL PRIMARY KEY,
  name          TEXT NOT NULL,
  checksum      TEXT NOT NULL,          -- SHA-256 of the file
  min_reader    INTEGER NOT NULL,       -- oldest tool that may use a ledger with this file applied
  applied_at    TIMESTAMPTZ NOT NULL DEFAULT now() CHECK (applied_at >= '1970-01-01Z' AND applied_at < '10000-01-01Z')
);

CREATE TABLE notify_meta (              -- instance, secret, clock_offset (seconds), clock_mark (high-water mark)
  key           TEXT NOT NULL PRIMARY KEY,
  value         TEXT NOT NULL
);

-------------------------------------------------------------------------------------------- what is to be sent

CREATE TABLE notify_template (          -- one part of one published version; never changed once published
  name          TEXT NOT NULL,
  version       TEXT NOT NULL,
  locale        TEXT NOT NULL DEFAULT '',
  part          TEXT NOT NULL CHECK (part IN ('subject', 'text', 'html', 'sms')),
  body          TEXT NOT NULL,
  sha256        TEXT NOT NULL,
  sequence      BIGINT NOT NULL,        -- one number per published version, the newest has the highest
  published_at  TIMESTAMPTZ NOT NULL DEFAULT now()
                  CHECK (published_at >= '1970-01-01Z' AND published_at < '10000-01-01Z'),
  PRIMARY KEY (name, version, locale, part)
);

CREATE INDEX notify_template_newest ON notify_template (name, sequence);

CREATE TABLE notify_delivery (          -- one event, one recipient, one channel: what was asked for, where it stands
  id               BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  -- the intent: stated by the application, immutable
  event_id         TEXT NOT NULL CHECK (
                     length(event_id) BETWEEN 1 AND 200 AND event_id !~ '[@\x01-\x1F\x7F-\x9F]'),
  recipient_id     TEXT NOT NULL CHECK (
                     length(recipient_id) BETWEEN 1 AND 200 AND recipient_id !~ '[@\x01-\x1F\x7F-\x9F]'),
  channel          TEXT NOT NULL CHECK (channel IN ('email', 'sms')),
  lane             TEXT NOT NULL DEFAULT '',  -- empty: the channel's name
  region           TEXT NOT NULL DEFAULT '',
  topic            TEXT,
  template         TEXT NOT NULL CHECK (template <> ''),
  template_version TEXT,                -- NULL: the newest published one, pinned by the insert
  locale           TEXT,
  variables        JSONB NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(variables) = 'object'),
  attachments      JSONB NOT NULL DEFAULT '[]' CHECK (jsonb_typeof(attachments) = 'array'),
  destination      TEXT,                -- NULL: the recipient's current endpoint
  due_at           TIMESTAMPTZ NOT NULL DEFAULT now()
                     CHECK (due_at >= '1970-01-01Z' AND due_at < '10000-01-01Z'),
  expires_at       TIMESTAMPTZ CHECK (expires_at >= '1970-01-01Z' AND expires_at < '10000-01-01Z'),
  content_digest   TEXT,                -- keyed; NULL until the first claim
  idempotency_key  TEXT COLLATE "C" GENERATED ALWAYS AS
                     (length(event_id)::text || ':' || event_id || ':' || recipient_id || ':' || channel) STORED,
  -- where it stands: written by notifyctl only
  state            TEXT NOT NULL DEFAULT 'queued' CHECK (state IN (
                     'queued', 'sending', 'temporary_failure', 'ambiguous', 'accepted', 'pending', 'delivered',
                     'permanent_failure', 'suppressed', 'expired', 'cancelled', 'dead_letter', 'unresolved')),
  reason           TEXT NOT NULL DEFAULT '',
  attempts_used    INTEGER NOT NULL DEFAULT 0 CHECK (attempts_used BETWEEN 0 AND 1000000000),
  first_tried_at   TIMESTAMPTZ CHECK (first_tried_at >= '1970-01-01Z' AND first_tried_at < '10000-01-01Z'),
  doubt_since      TIMESTAMPTZ          -- start of the earliest attempt whose outcome is unknown
                     CHECK (doubt_since >= '1970-01-01Z' AND doubt_since < '10000-01-01Z'),
  endpoint_id      BIGINT,
  fingerprint      TEXT,                -- keyed hash of the destination; NULL until the first claim
  transport        TEXT,
  sender           TEXT,
  message_date     TIMESTAMPTZ CHECK (message_date >= '1970-01-01Z' AND message_date < '10000-01-01Z'),
  fencing_token    BIGINT NOT NULL DEFAULT 0  -- the work row's, saved when the delivery settles
                     CHECK (fencing_token BETWEEN 0 AND 1000000000000000000),
  wire_key         TEXT COLLATE "C",    -- what providers see of the key; NULL until the first begin
  remote_id        TEXT,
  accepted_at      TIMESTAMPTZ CHECK (accepted_at >= '1970-01-01Z' AND accepted_at < '10000-01-01Z'),
  receipts_from    TIMESTAMPTZ          -- where the receipt deadline counts from; NULL: accepted_at
                     CHECK (receipts_from >= '1970-01-01Z' AND receipts_from < '10000-01-01Z'),
  settled_at       TIMESTAMPTZ CHECK (settled_at >= '1970-01-01Z' AND settled_at < '10000-01-01Z'),
  created_at       TIMESTAMPTZ NOT NULL DEFAULT now()
                     CHECK (created_at >= '1970-01-01Z' AND created_at < '10000-01-01Z'),
  updated_at       TIMESTAMPTZ NOT NULL DEFAULT now()
                     CHECK (updated_at >= '1970-01-01Z' AND updated_at < '10000-01-01Z'),
  sensitive        BOOLEAN NOT NULL DEFAULT false,
  batch            TEXT,
  origin_id        BIGINT,              -- the delivery that this one sends anew
  -- what was accepted is never led to another submission
  CONSTRAINT notify_delivery_accepted CHECK (
    accepted_at IS NULL OR state NOT IN ('queued', 'sending', 'temporary_failure', 'ambiguous'))
) WITH (
  -- Large and mostly at rest: a fifth of it, the default, would be too much to wait for.
  autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_scale_factor = 0.01, autovacuum_analyze_scale_factor = 0.01
);

CREATE UNIQUE INDEX notify_delivery_key ON notify_delivery (idempotency_key);
CREATE INDEX notify_delivery_state ON notify_delivery (state, id);
CREATE INDEX notify_delivery_event ON notify_delivery (event_id);
CREATE INDEX notify_delivery_recipient ON notify_delivery (recipient_id, channel);
CREATE INDEX notify_delivery_remote ON notify_delivery (remote_id) WHERE remote_id IS NOT NULL;
CREATE INDEX notify_delivery_wire ON notify_delivery (wire_key) WHERE wire_key IS NOT NULL;
CREATE INDEX notify_delivery_created ON notify_delivery (created_at);
CREATE INDEX notify_delivery_expiry ON notify_delivery (expires_at)
  WHERE expires_at IS NOT NULL AND accepted_at IS NULL AND settled_at IS NULL;
CREATE INDEX notify_delivery_refused ON notify_delivery (reason) WHERE state = 'permanent_failure' AND attempts_used = 0;
CREATE INDEX notify_delivery_doubt ON notify_delivery (fingerprint) WHERE doubt_since IS NOT NULL;
CREATE INDEX notify_delivery_batch ON notify_delivery (batch) WHERE batch IS NOT NULL;

CREATE TABLE notify_key (               -- every idempotency key ever used; outlives its delivery
  key           TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  delivery_id   BIGINT NOT NULL
);

CREATE TABLE notify_work (              -- what must happen next to a live delivery; gone once it settles
  delivery_id   BIGINT NOT NULL PRIMARY KEY REFERENCES notify_delivery (id),
  step          TEXT NOT NULL CHECK (step IN ('send', 'check', 'resolve')),
  lane          TEXT NOT NULL,
  region        TEXT NOT NULL,
  due_at        TIMESTAMPTZ NOT NULL CHECK (due_at >= '1970-01-01Z' AND due_at < '10000-01-01Z'),
  eligible_at   TIMESTAMPTZ NOT NULL    -- due, retry or check time, or the deadline of whoever owns it
                  CHECK (eligible_at >= '1970-01-01Z' AND eligible_at < '10000-01-01Z'),
  owner         TEXT,                   -- a run
  fencing_token BIGINT NOT NULL DEFAULT 0 CHECK (fencing_token BETWEEN 0 AND 1000000000000000000),
  tries         INTEGER NOT NULL DEFAULT 0 CHECK (tries BETWEEN 0 AND 1000000000),
  mandate       TEXT CHECK (mandate IN ('replay', 'duplicate')),
  held          BOOLEAN NOT NULL DEFAULT false   -- in doubt, and a person has been told
) WITH (
  -- Small and rewritten at every claim: dead rows must go whatever the backlog's size, and at once.
  fillfactor = 70, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0,
  autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_threshold = 5000, autovacuum_analyze_scale_factor = 0
);

CREATE INDEX notify_work_claim ON notify_work (step, lane, region, eligible_at, delivery_id);

-------------------------------------------------------------------------------------------------- what happened

CREATE TABLE notify_attempt (           -- one submission; opened before its first byte
  delivery_id    BIGINT NOT NULL,
  number         INTEGER NOT NULL,
  run            TEXT NOT NULL,
  fencing_token  BIGINT NOT NULL CHECK (fencing_token BETWEEN 0 AND 1000000000000000000),
  transport      TEXT NOT NULL,
  started        TIMESTAMPTZ NOT NULL CHECK (started >= '1970-01-01Z' AND started < '10000-01-01Z'),
  finished       TIMESTAMPTZ CHECK (finished >= '1970-01-01Z' AND finished < '10000-01-01Z'),
  outcome        TEXT CHECK (outcome IN (
                   'accepted', 'temporary_failure', 'rate_limited', 'unavailable', 'permanent_failure', 'ambiguous')),
  reason         TEXT NOT NULL DEFAULT '',
  code           TEXT NOT NULL DEFAULT '',
  remote_id      TEXT,
  remote_ids     JSONB CHECK (jsonb_typeof(remote_ids) = 'array'),
  retry_after    DOUBLE PRECISION CHECK (retry_after > '-infinity' AND retry_after < 'infinity'),  -- seconds
  request_digest TEXT,                  -- keyed
  fingerprint    TEXT,
  mandate        TEXT CHECK (mandate IN ('replay', 'duplicate')),
  locale         TEXT,
  encoding       TEXT,
  segments       INTEGER,
  bytes          BIGINT,
  duration       DOUBLE PRECISION CHECK (duration > '-infinity' AND duration < 'infinity'),  -- seconds
  late           BOOLEAN NOT NULL DEFAULT false,
  PRIMARY KEY (delivery_id, number)
) WITH (fillfactor = 80);  -- room for the outcome beside its opening

CREATE TABLE notify_receipt (           -- one thing a provider said of a message
  id            BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  delivery_id   BIGINT NOT NULL,
  at            TIMESTAMPTZ NOT NULL DEFAULT now() CHECK (at >= '1970-01-01Z' AND at < '10000-01-01Z'),
  provider_time TIMESTAMPTZ CHECK (provider_time >= '1970-01-01Z' AND provider_time < '10000-01-01Z'),
  remote_id     TEXT,
  part          INTEGER NOT NULL DEFAULT 0,
  status        TEXT NOT NULL,
  reason        TEXT NOT NULL DEFAULT '',
  code          TEXT NOT NULL DEFAULT ''
);

-- What is said twice is kept once: a feed read again after a crash changes nothing.
CREATE UNIQUE INDEX notify_receipt_once ON notify_receipt (
  delivery_id, part, status, COALESCE(remote_id, ''),
  COALESCE(provider_time, TIMESTAMPTZ '1970-01-01 00:00:00+00'), reason, code);

CREATE TABLE notify_transition (        -- one change of state, with who made it
  id            BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  delivery_id   BIGINT NOT NULL,
  at            TIMESTAMPTZ NOT NULL DEFAULT now() CHECK (at >= '1970-01-01Z' AND at < '10000-01-01Z'),
  "from"        TEXT,                   -- NULL: the birth
  "to"          TEXT NOT NULL,
  reason        TEXT NOT NULL DEFAULT '',
  attempt       INTEGER,
  actor         TEXT NOT NULL,          -- a run, a batch, or a person
  note          TEXT NOT NULL DEFAULT ''
);

CREATE INDEX notify_transition_delivery ON notify_transition (delivery_id);

----------------------------------------------------------------- recipients: append-only, the newest row counts

CREATE TABLE notify_endpoint (          -- a recipient's address on a channel
  id            BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  recipient_id  TEXT NOT NULL CHECK (
                  length(recipient_id) BETWEEN 1 AND 200 AND recipient_id !~ '[@\x01-\x1F\x7F-\x9F]'),
  channel       TEXT NOT NULL CHECK (channel IN ('email', 'sms')),
  address       TEXT NOT NULL,          -- empty: erased
  fingerprint   TEXT,                   -- keyed hash; NULL until notifyctl has read the address
  actor         TEXT NOT NULL DEFAULT '',
  at            TIMESTAMPTZ NOT NULL DEFAULT now() CHECK (at >= '1970-01-01Z' AND at < '10000-01-01Z')
);

CREATE INDEX notify_endpoint_newest ON notify_endpoint (recipient_id, channel, id);

CREATE TABLE notify_suppression (       -- a durable "do not contact"; a lifted row lifts the pair's earlier ones
  id                 BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  recipient_id       TEXT NOT NULL CHECK (
                       length(recipient_id) BETWEEN 1 AND 200 AND recipient_id !~ '[@\x01-\x1F\x7F-\x9F]'),
  channel            TEXT NOT NULL CHECK (channel IN ('email', 'sms')),
  reason             TEXT NOT NULL DEFAULT 'manual' CHECK (reason <> ''),
  lifted             BOOLEAN NOT NULL DEFAULT false,
  fingerprint        TEXT,              -- 'invalid_recipient' and 'hard_bounce' concern this address only
  source_delivery_id BIGINT,
  remote_id          TEXT,
  actor              TEXT NOT NULL DEFAULT '',
  note               TEXT NOT NULL DEFAULT '',
  at                 TIMESTAMPTZ NOT NULL DEFAULT now() CHECK (at >= '1970-01-01Z' AND at < '10000-01-01Z')
);

CREATE INDEX notify_suppression_newest ON notify_suppression (recipient_id, channel, id);

CREATE TABLE notify_consent (           -- consent of a recipient to a topic on a channel, given or revoked
  id            BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  recipient_id  TEXT NOT NULL CHECK (
                  length(recipient_id) BETWEEN 1 AND 200 AND recipient_id !~ '[@\x01-\x1F\x7F-\x9F]'),
  channel       TEXT NOT NULL CHECK (channel IN ('email', 'sms')),
  topic         TEXT NOT NULL CHECK (topic <> ''),
  granted       BOOLEAN NOT NULL,
  actor         TEXT NOT NULL DEFAULT '',
  note          TEXT NOT NULL DEFAULT '',
  at            TIMESTAMPTZ NOT NULL DEFAULT now() CHECK (at >= '1970-01-01Z' AND at < '10000-01-01Z')
);

CREATE INDEX notify_consent_newest ON notify_consent (recipient_id, channel, topic, id);

------------------------------------------------------------------------------- what all runs on all hosts share

CREATE TABLE notify_gate (              -- a pause, a cool-down or a breaker
  scope         TEXT NOT NULL CHECK (scope IN ('lane', 'transport')),
  name          TEXT NOT NULL,
  kind          TEXT NOT NULL CHECK (kind IN ('pause', 'cooldown', 'breaker')),
  until         TIMESTAMPTZ             -- NULL: until a person resumes it; of a probe that is out: its deadline
                  CHECK (until >= '1970-01-01Z' AND until < '10000-01-01Z'),
  level         INTEGER NOT NULL DEFAULT 0 CHECK (level BETWEEN 0 AND 1000000000),
  probe_owner   TEXT,                   -- the run whose attempt is the probe
  reason        TEXT NOT NULL DEFAULT '',
  actor         TEXT NOT NULL DEFAULT '',
  at            TIMESTAMPTZ NOT NULL DEFAULT now() CHECK (at >= '1970-01-01Z' AND at < '10000-01-01Z'),
  PRIMARY KEY (scope, name, kind)
);

CREATE TABLE notify_gate_trail (        -- what happened to gates, and who did it; append-only
  id            BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at            TIMESTAMPTZ NOT NULL DEFAULT now() CHECK (at >= '1970-01-01Z' AND at < '10000-01-01Z'),
  scope         TEXT NOT NULL,
  name          TEXT NOT NULL,
  kind          TEXT NOT NULL,
  action        TEXT NOT NULL CHECK (action IN ('closed', 'probed', 'opened')),
  until         TIMESTAMPTZ CHECK (until >= '1970-01-01Z' AND until < '10000-01-01Z'),
  level         INTEGER NOT NULL DEFAULT 0 CHECK (level BETWEEN 0 AND 1000000000),
  reason        TEXT NOT NULL DEFAULT '',
  actor         TEXT NOT NULL           -- a run, or a person
);

CREATE TABLE notify_pace (              -- one rate limit's state: of a lane, a transport or a destination fingerprint
  -- a year is left for what is added to these times
  key           TEXT NOT NULL,
  rate          TEXT NOT NULL,
  tat           TIMESTAMPTZ             -- /s and /m: theoretical arrival time of the next message
                  CHECK (tat >= '1970-01-01Z' AND tat < '9999-01-01Z'),
  window_start  TIMESTAMPTZ CHECK (window_start >= '1970-01-01Z' AND window_start < '9999-01-01Z'),  -- /h and /d
  count         BIGINT NOT NULL DEFAULT 0 CHECK (count BETWEEN 0 AND 1000000000000000000),
  PRIMARY KEY (key, rate)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);

CREATE TABLE notify_run (               -- one tick that did something
  id            TEXT NOT NULL PRIMARY KEY,
  command       TEXT NOT NULL,
  host          TEXT NOT NULL,
  pid           INTEGER NOT NULL,
  version       TEXT NOT NULL,
  started       TIMESTAMPTZ NOT NULL CHECK (started >= '1970-01-01Z' AND started < '10000-01-01Z'),
  finished      TIMESTAMPTZ CHECK (finished >= '1970-01-01Z' AND finished < '10000-01-01Z'),
  exit_code     INTEGER,
  counts        JSONB NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(counts) = 'object')
);

CREATE INDEX notify_run_started ON notify_run (started);

CREATE TABLE notify_cursor (            -- how far a mailbox or event feed was read, and who is reading it
  transport     TEXT NOT NULL PRIMARY KEY,
  cursor        TEXT NOT NULL DEFAULT '',
  eligible_at   TIMESTAMPTZ NOT NULL    -- the next read, or the deadline of whoever reads it now
                  CHECK (eligible_at >= '1970-01-01Z' AND eligible_at < '10000-01-01Z'),
  owner         TEXT,                   -- a run
  fencing_token BIGINT NOT NULL DEFAULT 0 CHECK (fencing_token BETWEEN 0 AND 1000000000000000000),
  at            TIMESTAMPTZ NOT NULL DEFAULT now() CHECK (at >= '1970-01-01Z' AND at < '10000-01-01Z')
);

--------------------------------------------------------------------------------------------- what an insert decides

-- The functions run as the ledger's owner, so that a role that may only INSERT the columns of an intent is enough for
-- an application. Their search_path is the ledger's schema, as it was when they were made, and nobody else may use
-- them as triggers of tables of his own.

CREATE FUNCTION notify_delivery_decide() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  its_key TEXT := length(NEW.event_id)::text || ':' || NEW.event_id || ':' || NEW.recipient_id || ':' || NEW.channel;
BEGIN
  -- A pruned delivery's key is remembered: the same event is never sent again, and says nothing about it.
  IF EXISTS (SELECT FROM notify_key k WHERE k.key = its_key
             AND NOT EXISTS (SELECT FROM notify_delivery d WHERE d.idempotency_key = its_key)) THEN
    RETURN NULL;
  END IF;
  IF NEW.state IN ('sending', 'temporary_failure', 'ambiguous', 'pending') THEN
    RAISE EXCEPTION 'notify_delivery.state: a delivery is born queued, or settled when history is imported'
      USING ERRCODE = 'check_violation', TABLE = 'notify_delivery', COLUMN = 'state';
  END IF;

  -- what was left out
  NEW.lane := COALESCE(NULLIF(NEW.lane, ''), NEW.channel);
  NEW.region := COALESCE(NEW.region, '');
  NEW.topic := NULLIF(NEW.topic, '');
  NEW.locale := NULLIF(NEW.locale, '');
  NEW.destination := NULLIF(NEW.destination, '');
  NEW.variables := COALESCE(NEW.variables, '{}');
  NEW.attachments := COALESCE(NEW.attachments, '[]');
  NEW.due_at := COALESCE(NEW.due_at, now());
  NEW.sensitive := COALESCE(NEW.sensitive, false);
  NEW.template_version := NULLIF(NEW.template_version, '');
  IF NEW.template_version IS NULL THEN
    SELECT t.version INTO NEW.template_version FROM notify_template t
    WHERE t.name = NEW.template ORDER BY t.sequence DESC LIMIT 1;
  END IF;

  IF NEW.state <> 'queued' THEN  -- imported history
    NEW.settled_at := COALESCE(NEW.settled_at, now());
    IF NEW.state IN ('accepted', 'delivered', 'unresolved') THEN
      NEW.accepted_at := COALESCE(NEW.accepted_at, now());
    END IF;
    IF NEW.sensitive AND NEW.state NOT IN ('dead_letter', 'unresolved') THEN
      NEW.variables := '{}';
    END IF;
    RETURN NEW;
  END IF;

  -- a suppressed recipient, or one who has revoked consent: nothing waits in the queue
  SELECT 'suppressed', s.reason, now() INTO NEW.state, NEW.reason, NEW.settled_at
    FROM notify_suppression s
    WHERE s.recipient_id = NEW.recipient_id AND s.channel = NEW.channel AND NOT s.lifted
      AND s.id > COALESCE((SELECT max(l.id) FROM notify_suppression l
                           WHERE l.recipient_id = NEW.recipient_id AND l.channel = NEW.channel AND l.lifted), 0)
      AND (s.reason NOT IN ('invalid_recipient', 'hard_bounce') OR s.fingerprint IS NULL
           OR s.fingerprint = NEW.fingerprint)
    ORDER BY s.id DESC LIMIT 1;
  IF NOT FOUND THEN
    NEW.state := 'queued';
    NEW.reason := '';
    IF NEW.topic IS NOT NULL AND NOT COALESCE((
      SELECT c.granted FROM notify_consent c
      WHERE c.recipient_id = NEW.recipient_id AND c.channel = NEW.channel AND c.topic = NEW.topic
      ORDER BY c.id DESC LIMIT 1), true)
    THEN
      NEW.state := 'suppressed';
      NEW.reason := 'consent_revoked';
      NEW.settled_at := now();
    END IF;
  END IF;
  IF NEW.sensitive AND NEW.settled_at IS NOT NULL THEN
    NEW.variables := '{}';
  END IF;
  RETURN NEW;
END
$$;

CREATE TRIGGER notify_delivery_decide BEFORE INSERT ON notify_delivery
FOR EACH ROW EXECUTE FUNCTION notify_delivery_decide();

CREATE FUNCTION notify_delivery_born() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  INSERT INTO notify_key (key, delivery_id) SELECT idempotency_key, id FROM born;
  INSERT INTO notify_work (delivery_id, step, lane, region, due_at, eligible_at)
    SELECT id, 'send', lane, region, due_at, due_at FROM born WHERE state = 'queued';
  INSERT INTO notify_transition (delivery_id, "to", reason, actor)
    SELECT id, state, reason, COALESCE(NULLIF(batch, ''), session_user) FROM born;
  RETURN NULL;
END
$$;

CREATE TRIGGER notify_delivery_born AFTER INSERT ON notify_delivery
REFERENCING NEW TABLE AS born FOR EACH STATEMENT EXECUTE FUNCTION notify_delivery_born();

-- What is marked sensitive is said once: a delivery at rest keeps the digest of its variables, not their values. What a
-- person may still requeue as it is keeps them.
CREATE FUNCTION notify_delivery_erase() RETURNS trigger
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
  NEW.variables := '{}';
  RETURN NEW;
END
$$;

CREATE TRIGGER notify_delivery_erase BEFORE UPDATE OF state, settled_at ON notify_delivery
FOR EACH ROW WHEN (
  NEW.sensitive AND NEW.settled_at IS NOT NULL AND NEW.state NOT IN ('dead_letter', 'unresolved')
  AND NEW.variables <> '{}')
EXECUTE FUNCTION notify_delivery_erase();

CREATE FUNCTION notify_refuse() RETURNS trigger
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
  RAISE EXCEPTION '%: %', TG_TABLE_NAME, TG_ARGV[0] USING ERRCODE = 'restrict_violation';
END
$$;

CREATE TRIGGER notify_delivery_identity BEFORE UPDATE OF event_id, recipient_id, channel ON notify_delivery
FOR EACH ROW WHEN (
  (NEW.event_id, NEW.recipient_id, NEW.channel) IS DISTINCT FROM (OLD.event_id, OLD.recipient_id, OLD.channel))
EXECUTE FUNCTION notify_refuse('event_id, recipient_id and channel are the delivery''s identity');

CREATE TRIGGER notify_template_published BEFORE UPDATE ON notify_template
FOR EACH ROW EXECUTE FUNCTION notify_refuse('a published version never changes; publish a new one');

------------------------------------------------------- recipients: append-only; a "no" settles what waits in the queue

CREATE TRIGGER notify_endpoint_delete BEFORE DELETE ON notify_endpoint
FOR EACH ROW EXECUTE FUNCTION notify_refuse('append-only: insert a new row');

-- Notifyctl fills in the fingerprint once; an erasure empties address and fingerprint, and keeps the row.
CREATE TRIGGER notify_endpoint_update BEFORE UPDATE ON notify_endpoint
FOR EACH ROW WHEN (
  (NEW.id, NEW.recipient_id, NEW.channel, NEW.actor, NEW.at)
    IS DISTINCT FROM (OLD.id, OLD.recipient_id, OLD.channel, OLD.actor, OLD.at)
  OR NEW.address NOT IN (OLD.address, '')
  OR NEW.fingerprint IS DISTINCT FROM OLD.fingerprint AND OLD.fingerprint IS NOT NULL AND NEW.fingerprint IS NOT NULL)
EXECUTE FUNCTION notify_refuse('append-only: insert a new row');

CREATE TRIGGER notify_suppression_append BEFORE UPDATE OR DELETE ON notify_suppression
FOR EACH ROW EXECUTE FUNCTION notify_refuse('append-only: insert a new row');

CREATE TRIGGER notify_consent_append BEFORE UPDATE OR DELETE ON notify_consent
FOR EACH ROW EXECUTE FUNCTION notify_refuse('append-only: insert a new row');

-- Settles the waiting sends of a recipient's channel. its_topic or its_fingerprint NULL: of all topics, all addresses.
-- Locks work rows first, in order of id, as everybody does; rows that a run has claimed and not begun are settled too:
-- the run's begin finds its token gone. A send without a mandate is queued or a temporary_failure; asking for the state
-- itself would invite the planner to read the whole of its index.
CREATE FUNCTION notify_sweep(
  its_recipient TEXT, its_channel TEXT, its_topic TEXT, its_fingerprint TEXT, why TEXT, who TEXT
) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
  waiting BIGINT[];
BEGIN
  waiting := ARRAY(
    SELECT w.delivery_id FROM notify_work w JOIN notify_delivery d ON d.id = w.delivery_id
    WHERE d.recipient_id = its_recipient AND d.channel = its_channel AND w.step = 'send' AND w.mandate IS NULL
      AND (its_topic IS NULL OR d.topic = its_topic) AND (its_fingerprint IS NULL OR d.fingerprint = its_fingerprint)
    ORDER BY w.delivery_id FOR UPDATE OF w);
  IF cardinality(waiting) = 0 THEN
    RETURN;
  END IF;
  INSERT INTO notify_transition (delivery_id, "from", "to", reason, actor)
    SELECT d.id, d.state, 'suppressed', why, COALESCE(NULLIF(who, ''), session_user)
    FROM notify_delivery d WHERE d.id = ANY (waiting) ORDER BY d.id;
  UPDATE notify_delivery d SET state = 'suppressed', reason = why, settled_at = now(), updated_at = now(),
      fencing_token = w.fencing_token + 1
    FROM notify_work w WHERE w.delivery_id = ANY (waiting) AND d.id = w.delivery_id;
  DELETE FROM notify_work WHERE delivery_id = ANY (waiting);
END
$$;

CREATE FUNCTION notify_suppression_sweep() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM notify_sweep(
    NEW.recipient_id, NEW.channel, NULL,
    CASE WHEN NEW.reason IN ('invalid_recipient', 'hard_bounce') THEN NEW.fingerprint END, NEW.reason, NEW.actor);
  RETURN NULL;
END
$$;

CREATE TRIGGER notify_suppression_sweep AFTER INSERT ON notify_suppression
FOR EACH ROW WHEN (NOT NEW.lifted) EXECUTE FUNCTION notify_suppression_sweep();

CREATE FUNCTION notify_consent_sweep() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM notify_sweep(NEW.recipient_id, NEW.channel, NEW.topic, NULL, 'consent_revoked', NEW.actor);
  RETURN NULL;
END
$$;

CREATE TRIGGER notify_consent_sweep AFTER INSERT ON notify_consent
FOR EACH ROW WHEN (NOT NEW.granted) EXECUTE FUNCTION notify_consent_sweep();

REVOKE EXECUTE ON FUNCTION notify_delivery_decide(), notify_delivery_born(), notify_refuse(),
  notify_suppression_sweep(), notify_consent_sweep(), notify_sweep(TEXT, TEXT, TEXT, TEXT, TEXT, TEXT) FROM PUBLIC;
