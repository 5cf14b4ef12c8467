-- min_reader: 1
-- The ledger, SQLite 3.35 or newer. Same tables, columns and rules as ../postgresql/0001_ledger.sql.
--
-- The contract for applications is ../README.md. Times are UTC text 'YYYY-MM-DD HH:MM:SS.ffffff', so that they
-- sort; what an application gives in another ISO form is rewritten by triggers. JSON is text, booleans are 0 and 1.

------------------------------------------------------------------------------------------------ about the ledger

CREATE TABLE notify_schema (            -- one applied file of this folder
  version       INTEGER NOT NULL PRIMARY KEY,
  name          TEXT NOT NULL,
  checksum      TEXT NOT NULL,          -- SHA-256 of the file
  min_reader    INTEGER NOT NULL,       -- oldest tool that may use a ledger with this file applied
  applied_at    TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')
);

CREATE TABLE notify_meta (              -- instance, secret, clock_offset (seconds), clock_mark (high-water mark)
  key           TEXT NOT NULL PRIMARY KEY,
  value         TEXT NOT NULL
) WITHOUT ROWID;

-------------------------------------------------------------------------------------------- what is to be sent

CREATE TABLE notify_template (          -- one part of one published version; never changed once published
  name          TEXT NOT NULL,
  version       TEXT NOT NULL,
  locale        TEXT NOT NULL DEFAULT '',
  part          TEXT NOT NULL CHECK (part IN ('subject', 'text', 'html', 'sms')),
  body          TEXT NOT NULL,
  sha256        TEXT NOT NULL,
  sequence      INTEGER NOT NULL,       -- one number per published version, the newest has the highest
  published_at  TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'),
  PRIMARY KEY (name, version, locale, part)
) WITHOUT ROWID;

CREATE INDEX notify_template_newest ON notify_template (name, sequence);

CREATE TABLE notify_delivery (          -- one event, one recipient, one channel: what was asked for, where it stands
  id               INTEGER PRIMARY KEY AUTOINCREMENT,
  -- the intent: stated by the application, immutable
  event_id         TEXT NOT NULL CHECK (
                     typeof(event_id) = 'text' AND length(event_id) BETWEEN 1 AND 200 AND instr(event_id, '@') = 0
                     AND instr(event_id, char(0)) = 0
                     AND event_id NOT GLOB '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*'),
  recipient_id     TEXT NOT NULL CHECK (
                     typeof(recipient_id) = 'text' AND length(recipient_id) BETWEEN 1 AND 200
                     AND instr(recipient_id, '@') = 0 AND instr(recipient_id, char(0)) = 0
                     AND recipient_id NOT GLOB '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*'),
  channel          TEXT NOT NULL CHECK (channel IN ('email', 'sms')),
  lane             TEXT NOT NULL ON CONFLICT REPLACE DEFAULT '',   -- empty: the channel's name
  region           TEXT NOT NULL ON CONFLICT REPLACE DEFAULT '',
  topic            TEXT,
  template         TEXT NOT NULL CHECK (template <> ''),
  template_version TEXT,                -- NULL: the newest published one, pinned by the insert
  locale           TEXT,
  variables        TEXT NOT NULL ON CONFLICT REPLACE DEFAULT '{}'
                     CHECK (CASE WHEN json_valid(variables) THEN json_type(variables) = 'object' ELSE 0 END),
  attachments      TEXT NOT NULL ON CONFLICT REPLACE DEFAULT '[]'
                     CHECK (CASE WHEN json_valid(attachments) THEN json_type(attachments) = 'array' ELSE 0 END),
  destination      TEXT,                -- NULL: the recipient's current endpoint
  due_at           TEXT NOT NULL ON CONFLICT REPLACE DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'),
  expires_at       TEXT,
  content_digest   TEXT,                -- keyed; NULL until the first claim
  idempotency_key  TEXT GENERATED ALWAYS AS
                     (length(event_id) || ':' || event_id || ':' || recipient_id || ':' || channel) VIRTUAL,
  -- where it stands: written by notifyctl only
  state            TEXT NOT NULL DEFAULT 'queued' CHECK (state IN (
                     'queued', 'sending', 'temporary_failure', 'ambiguous', 'accepted', 'pending', 'delivered',
                     'permanent_failure', 'suppressed', 'expired', 'cancelled', 'dead_letter', 'unresolved')),
  reason           TEXT NOT NULL DEFAULT '',
  attempts_used    INTEGER NOT NULL DEFAULT 0,
  first_tried_at   TEXT,
  doubt_since      TEXT,                -- start of the earliest attempt whose outcome is unknown
  endpoint_id      INTEGER,
  fingerprint      TEXT,                -- keyed hash of the destination; NULL until the first claim
  transport        TEXT,
  sender           TEXT,
  message_date     TEXT,
  fencing_token    INTEGER NOT NULL DEFAULT 0,   -- the work row's, saved when the delivery settles
  remote_id        TEXT,
  accepted_at      TEXT,
  settled_at       TEXT,
  created_at       TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'),
  updated_at       TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'),
  sensitive        INTEGER NOT NULL ON CONFLICT REPLACE DEFAULT 0 CHECK (sensitive IN (0, 1)),
  batch            TEXT,
  origin_id        INTEGER              -- the delivery that this one sends anew
);

CREATE UNIQUE INDEX notify_delivery_key ON notify_delivery (idempotency_key);
CREATE INDEX notify_delivery_state ON notify_delivery (state, id);
CREATE INDEX notify_delivery_event ON notify_delivery (event_id);
CREATE INDEX notify_delivery_recipient ON notify_delivery (recipient_id, channel);
CREATE INDEX notify_delivery_remote ON notify_delivery (remote_id) WHERE remote_id IS NOT NULL;
CREATE INDEX notify_delivery_created ON notify_delivery (created_at);

CREATE TABLE notify_key (               -- every idempotency key ever used; outlives its delivery
  key           TEXT NOT NULL PRIMARY KEY,
  delivery_id   INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE notify_work (              -- what must happen next to a live delivery; gone once it settles
  delivery_id   INTEGER NOT NULL PRIMARY KEY REFERENCES notify_delivery (id),
  step          TEXT NOT NULL CHECK (step IN ('send', 'check', 'resolve')),
  lane          TEXT NOT NULL,
  region        TEXT NOT NULL,
  due_at        TEXT NOT NULL,
  eligible_at   TEXT NOT NULL,          -- due, retry or check time, or the deadline of whoever owns it
  owner         TEXT,                   -- a run
  fencing_token INTEGER NOT NULL DEFAULT 0,
  tries         INTEGER NOT NULL DEFAULT 0,
  mandate       TEXT CHECK (mandate IN ('replay', 'duplicate'))
);

CREATE INDEX notify_work_claim ON notify_work (step, lane, region, eligible_at, delivery_id);

-------------------------------------------------------------------------------------------------- what happened

CREATE TABLE notify_attempt (           -- one submission; opened before its first byte
  delivery_id    INTEGER NOT NULL,
  number         INTEGER NOT NULL,
  run            TEXT NOT NULL,
  fencing_token  INTEGER NOT NULL,
  transport      TEXT NOT NULL,
  started        TEXT NOT NULL,
  finished       TEXT,
  outcome        TEXT CHECK (outcome IN (
                   'accepted', 'temporary_failure', 'rate_limited', 'unavailable', 'permanent_failure', 'ambiguous')),
  reason         TEXT NOT NULL DEFAULT '',
  code           TEXT NOT NULL DEFAULT '',
  remote_id      TEXT,
  remote_ids     TEXT CHECK (remote_ids IS NULL OR json_valid(remote_ids)),
  retry_after    REAL,                  -- seconds
  request_digest TEXT,                  -- keyed
  fingerprint    TEXT,
  mandate        TEXT CHECK (mandate IN ('replay', 'duplicate')),
  locale         TEXT,
  encoding       TEXT,
  segments       INTEGER,
  bytes          INTEGER,
  duration       REAL,                  -- seconds
  late           INTEGER NOT NULL DEFAULT 0 CHECK (late IN (0, 1)),
  PRIMARY KEY (delivery_id, number)
) WITHOUT ROWID;

CREATE TABLE notify_receipt (           -- one thing a provider said of a message
  id            INTEGER PRIMARY KEY AUTOINCREMENT,
  delivery_id   INTEGER NOT NULL,
  at            TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'),
  provider_time TEXT,
  remote_id     TEXT,
  part          INTEGER NOT NULL DEFAULT 0,
  status        TEXT NOT NULL,
  reason        TEXT NOT NULL DEFAULT '',
  code          TEXT NOT NULL DEFAULT ''
);

CREATE INDEX notify_receipt_delivery ON notify_receipt (delivery_id);

CREATE TABLE notify_transition (        -- one change of state, with who made it
  id            INTEGER PRIMARY KEY AUTOINCREMENT,
  delivery_id   INTEGER NOT NULL,
  at            TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'),
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
  id            INTEGER PRIMARY KEY AUTOINCREMENT,
  recipient_id  TEXT NOT NULL CHECK (
                  typeof(recipient_id) = 'text' AND length(recipient_id) BETWEEN 1 AND 200
                  AND instr(recipient_id, '@') = 0 AND instr(recipient_id, char(0)) = 0
                  AND recipient_id NOT GLOB '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*'),
  channel       TEXT NOT NULL CHECK (channel IN ('email', 'sms')),
  address       TEXT NOT NULL,          -- empty: erased
  fingerprint   TEXT,                   -- keyed hash; NULL until notifyctl has read the address
  actor         TEXT NOT NULL DEFAULT '',
  at            TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')
);

CREATE INDEX notify_endpoint_newest ON notify_endpoint (recipient_id, channel, id);

CREATE TABLE notify_suppression (       -- a durable "do not contact"; a lifted row lifts the pair's earlier ones
  id                 INTEGER PRIMARY KEY AUTOINCREMENT,
  recipient_id       TEXT NOT NULL CHECK (
                       typeof(recipient_id) = 'text' AND length(recipient_id) BETWEEN 1 AND 200
                       AND instr(recipient_id, '@') = 0 AND instr(recipient_id, char(0)) = 0
                       AND recipient_id NOT GLOB
                         '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*'),
  channel            TEXT NOT NULL CHECK (channel IN ('email', 'sms')),
  reason             TEXT NOT NULL DEFAULT 'manual' CHECK (reason <> ''),
  lifted             INTEGER NOT NULL DEFAULT 0 CHECK (lifted IN (0, 1)),
  fingerprint        TEXT,              -- 'invalid_recipient' and 'hard_bounce' concern this address only
  source_delivery_id INTEGER,
  remote_id          TEXT,
  actor              TEXT NOT NULL DEFAULT '',
  note               TEXT NOT NULL DEFAULT '',
  at                 TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')
);

CREATE INDEX notify_suppression_newest ON notify_suppression (recipient_id, channel, id);

CREATE TABLE notify_consent (           -- consent of a recipient to a topic on a channel, given or revoked
  id            INTEGER PRIMARY KEY AUTOINCREMENT,
  recipient_id  TEXT NOT NULL CHECK (
                  typeof(recipient_id) = 'text' AND length(recipient_id) BETWEEN 1 AND 200
                  AND instr(recipient_id, '@') = 0 AND instr(recipient_id, char(0)) = 0
                  AND recipient_id NOT GLOB '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*'),
  channel       TEXT NOT NULL CHECK (channel IN ('email', 'sms')),
  topic         TEXT NOT NULL CHECK (topic <> ''),
  granted       INTEGER NOT NULL CHECK (granted IN (0, 1)),
  actor         TEXT NOT NULL DEFAULT '',
  note          TEXT NOT NULL DEFAULT '',
  at            TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')
);

CREATE INDEX notify_consent_newest ON notify_consent (recipient_id, channel, topic, id);

------------------------------------------------------------------------------- what all runs on all hosts share

CREATE TABLE notify_gate (              -- a pause, a cool-down or a breaker
  scope         TEXT NOT NULL CHECK (scope IN ('lane', 'transport')),
  name          TEXT NOT NULL,
  kind          TEXT NOT NULL CHECK (kind IN ('pause', 'cooldown', 'breaker')),
  until         TEXT,                   -- NULL: until a person resumes it
  level         INTEGER NOT NULL DEFAULT 0,
  probe_owner   TEXT,
  reason        TEXT NOT NULL DEFAULT '',
  actor         TEXT NOT NULL DEFAULT '',
  at            TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'),
  PRIMARY KEY (scope, name, kind)
) WITHOUT ROWID;

CREATE TABLE notify_pace (              -- one rate limit's state: of a lane, a transport or a destination fingerprint
  key           TEXT NOT NULL,
  rate          TEXT NOT NULL,
  tat           TEXT,                   -- /s and /m: theoretical arrival time of the next message
  window_start  TEXT,                   -- /h and /d
  count         INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (key, rate)
) WITHOUT ROWID;

CREATE TABLE notify_run (               -- one tick that did something
  id            TEXT NOT NULL PRIMARY KEY,
  command       TEXT NOT NULL,
  host          TEXT NOT NULL,
  pid           INTEGER NOT NULL,
  version       TEXT NOT NULL,
  started       TEXT NOT NULL,
  finished      TEXT,
  exit_code     INTEGER,
  counts        TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(counts))
) WITHOUT ROWID;

CREATE INDEX notify_run_started ON notify_run (started);

CREATE TABLE notify_cursor (            -- how far a mailbox or event feed was read
  transport     TEXT NOT NULL PRIMARY KEY,
  cursor        TEXT NOT NULL,
  at            TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')
) WITHOUT ROWID;
