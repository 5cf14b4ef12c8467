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
  applied_at    TIMESTAMPTZ NOT NULL DEFAULT now()
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
  published_at  TIMESTAMPTZ NOT NULL DEFAULT now(),
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
                     CHECK (due_at >= '1970-01-01Z' AND due_at < '9999-01-01Z'),
  expires_at       TIMESTAMPTZ CHECK (expires_at >= '1970-01-01Z' AND expires_at < '9999-01-01Z'),
  content_digest   TEXT,                -- keyed; NULL until the first claim
  idempotency_key  TEXT COLLATE "C" GENERATED ALWAYS AS
                     (length(event_id)::text || ':' || event_id || ':' || recipient_id || ':' || channel) STORED,
  -- where it stands: written by notifyctl only
  state            TEXT NOT NULL DEFAULT 'queued' CHECK (state IN (
                     'queued', 'sending', 'temporary_failure', 'ambiguous', 'accepted', 'pending', 'delivered',
                     'permanent_failure', 'suppressed', 'expired', 'cancelled', 'dead_letter', 'unresolved')),
  reason           TEXT NOT NULL DEFAULT '',
  attempts_used    INTEGER NOT NULL DEFAULT 0,
  first_tried_at   TIMESTAMPTZ,
  doubt_since      TIMESTAMPTZ,         -- start of the earliest attempt whose outcome is unknown
  endpoint_id      BIGINT,
  fingerprint      TEXT,                -- keyed hash of the destination; NULL until the first claim
  transport        TEXT,
  sender           TEXT,
  message_date     TIMESTAMPTZ,
  fencing_token    BIGINT NOT NULL DEFAULT 0,  -- the work row's, saved when the delivery settles
  remote_id        TEXT,
  accepted_at      TIMESTAMPTZ,
  settled_at       TIMESTAMPTZ,
  created_at       TIMESTAMPTZ NOT NULL DEFAULT now(),
  updated_at       TIMESTAMPTZ NOT NULL DEFAULT now(),
  sensitive        BOOLEAN NOT NULL DEFAULT false,
  batch            TEXT,
  origin_id        BIGINT               -- the delivery that this one sends anew
);

CREATE UNIQUE INDEX notify_delivery_key ON notify_delivery (idempotency_key);
CREATE INDEX notify_delivery_state ON notify_delivery (state, id);
CREATE INDEX notify_delivery_event ON notify_delivery (event_id);
CREATE INDEX notify_delivery_recipient ON notify_delivery (recipient_id, channel);
CREATE INDEX notify_delivery_remote ON notify_delivery (remote_id) WHERE remote_id IS NOT NULL;
CREATE INDEX notify_delivery_created ON notify_delivery (created_at);

CREATE TABLE notify_key (               -- every idempotency key ever used; outlives its delivery
  key           TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  delivery_id   BIGINT NOT NULL
);

CREATE TABLE notify_work (              -- what must happen next to a live delivery; gone once it settles
  delivery_id   BIGINT NOT NULL PRIMARY KEY REFERENCES notify_delivery (id),
  step          TEXT NOT NULL CHECK (step IN ('send', 'check', 'resolve')),
  lane          TEXT NOT NULL,
  region        TEXT NOT NULL,
  due_at        TIMESTAMPTZ NOT NULL,
  eligible_at   TIMESTAMPTZ NOT NULL,   -- due, retry or check time, or the deadline of whoever owns it
  owner         TEXT,                   -- a run
  fencing_token BIGINT NOT NULL DEFAULT 0,
  tries         INTEGER NOT NULL DEFAULT 0,
  mandate       TEXT CHECK (mandate IN ('replay', 'duplicate'))
);

CREATE INDEX notify_work_claim ON notify_work (step, lane, region, eligible_at, delivery_id);

-------------------------------------------------------------------------------------------------- what happened

CREATE TABLE notify_attempt (           -- one submission; opened before its first byte
  delivery_id    BIGINT NOT NULL,
  number         INTEGER NOT NULL,
  run            TEXT NOT NULL,
  fencing_token  BIGINT NOT NULL,
  transport      TEXT NOT NULL,
  started        TIMESTAMPTZ NOT NULL,
  finished       TIMESTAMPTZ,
  outcome        TEXT CHECK (outcome IN (
                   'accepted', 'temporary_failure', 'rate_limited', 'unavailable', 'permanent_failure', 'ambiguous')),
  reason         TEXT NOT NULL DEFAULT '',
  code           TEXT NOT NULL DEFAULT '',
  remote_id      TEXT,
  remote_ids     JSONB,
  retry_after    DOUBLE PRECISION,      -- seconds
  request_digest TEXT,                  -- keyed
  fingerprint    TEXT,
  mandate        TEXT CHECK (mandate IN ('replay', 'duplicate')),
  locale         TEXT,
  encoding       TEXT,
  segments       INTEGER,
  bytes          BIGINT,
  duration       DOUBLE PRECISION,      -- seconds
  late           BOOLEAN NOT NULL DEFAULT false,
  PRIMARY KEY (delivery_id, number)
);

CREATE TABLE notify_receipt (           -- one thing a provider said of a message
  id            BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  delivery_id   BIGINT NOT NULL,
  at            TIMESTAMPTZ NOT NULL DEFAULT now(),
  provider_time TIMESTAMPTZ,
  remote_id     TEXT,
  part          INTEGER NOT NULL DEFAULT 0,
  status        TEXT NOT NULL,
  reason        TEXT NOT NULL DEFAULT '',
  code          TEXT NOT NULL DEFAULT ''
);

CREATE INDEX notify_receipt_delivery ON notify_receipt (delivery_id);

CREATE TABLE notify_transition (        -- one change of state, with who made it
  id            BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  delivery_id   BIGINT NOT NULL,
  at            TIMESTAMPTZ NOT NULL DEFAULT now(),
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
  at            TIMESTAMPTZ NOT NULL DEFAULT now()
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
  at                 TIMESTAMPTZ NOT NULL DEFAULT now()
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
  at            TIMESTAMPTZ NOT NULL DEFAULT now()
);

CREATE INDEX notify_consent_newest ON notify_consent (recipient_id, channel, topic, id);

------------------------------------------------------------------------------- what all runs on all hosts share

CREATE TABLE notify_gate (              -- a pause, a cool-down or a breaker
  scope         TEXT NOT NULL CHECK (scope IN ('lane', 'transport')),
  name          TEXT NOT NULL,
  kind          TEXT NOT NULL CHECK (kind IN ('pause', 'cooldown', 'breaker')),
  until         TIMESTAMPTZ,            -- NULL: until a person resumes it
  level         INTEGER NOT NULL DEFAULT 0,
  probe_owner   TEXT,
  reason        TEXT NOT NULL DEFAULT '',
  actor         TEXT NOT NULL DEFAULT '',
  at            TIMESTAMPTZ NOT NULL DEFAULT now(),
  PRIMARY KEY (scope, name, kind)
);

CREATE TABLE notify_pace (              -- one rate limit's state: of a lane, a transport or a destination fingerprint
  key           TEXT NOT NULL,
  rate          TEXT NOT NULL,
  tat           TIMESTAMPTZ,            -- /s and /m: theoretical arrival time of the next message
  window_start  TIMESTAMPTZ,            -- /h and /d
  count         BIGINT NOT NULL DEFAULT 0,
  PRIMARY KEY (key, rate)
);

CREATE TABLE notify_run (               -- one tick that did something
  id            TEXT NOT NULL PRIMARY KEY,
  command       TEXT NOT NULL,
  host          TEXT NOT NULL,
  pid           INTEGER NOT NULL,
  version       TEXT NOT NULL,
  started       TIMESTAMPTZ NOT NULL,
  finished      TIMESTAMPTZ,
  exit_code     INTEGER,
  counts        JSONB NOT NULL DEFAULT '{}'
);

CREATE INDEX notify_run_started ON notify_run (started);

CREATE TABLE notify_cursor (            -- how far a mailbox or event feed was read
  transport     TEXT NOT NULL PRIMARY KEY,
  cursor        TEXT NOT NULL,
  at            TIMESTAMPTZ NOT NULL DEFAULT now()
);
