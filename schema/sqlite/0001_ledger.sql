-- min_reader: 1
-- The ledger, SQLite 3.35 or newer. Same tables, columns and rules as ../postgresql/0001_ledger.sql.
--
-- The contract for applications is ../README.md. Times are UTC text 'YYYY-MM-DD HH:MM:SS.ffffff', so that they
-- sort; what an application gives in another ISO form is rewritten by triggers. JSON is text, booleans are 0 and 1.
--
-- SQLite stores anything in any column, and STRICT needs 3.37: the CHECKs say what Postgres' types say. Text with an
-- affinity takes numbers as text, so that only a BLOB is left to refuse. Where a trigger rewrites a time, its CHECK
-- judges only what has the form that sorts.

------------------------------------------------------------------------------------------------ about the ledger

CREATE TABLE notify_schema (            -- one applied file of this folder
  version       INTEGER NOT NULL PRIMARY KEY,
  name          TEXT NOT NULL CHECK (typeof(name) <> 'blob'),
  checksum      TEXT NOT NULL CHECK (typeof(checksum) <> 'blob'),  -- SHA-256 of the file
  min_reader    INTEGER NOT NULL        -- oldest tool that may use a ledger with this file applied
                  CHECK (typeof(min_reader) = 'integer'),
  applied_at    TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000') CHECK (
                  datetime(substr(applied_at, 1, 19), '+0 days') IS substr(applied_at, 1, 19)
                  AND applied_at >= '1970' AND substr(applied_at, 20) GLOB '.[0-9][0-9][0-9][0-9][0-9][0-9]')
);

CREATE TABLE notify_meta (              -- instance, secret, clock_offset (seconds), clock_mark (high-water mark)
  key           TEXT NOT NULL PRIMARY KEY CHECK (typeof(key) <> 'blob'),
  value         TEXT NOT NULL CHECK (typeof(value) <> 'blob')
) WITHOUT ROWID;

-------------------------------------------------------------------------------------------- what is to be sent

CREATE TABLE notify_template (          -- one part of one published version; never changed once published
  name          TEXT NOT NULL CHECK (typeof(name) <> 'blob'),
  version       TEXT NOT NULL CHECK (typeof(version) <> 'blob'),
  locale        TEXT NOT NULL DEFAULT '' CHECK (typeof(locale) <> 'blob'),
  part          TEXT NOT NULL CHECK (part IN ('subject', 'text', 'html', 'sms')),
  body          TEXT NOT NULL CHECK (typeof(body) <> 'blob'),
  sha256        TEXT NOT NULL CHECK (typeof(sha256) <> 'blob'),
  sequence      INTEGER NOT NULL        -- one number per published version, the newest has the highest
                  CHECK (typeof(sequence) = 'integer'),
  published_at  TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000') CHECK (
                  datetime(substr(published_at, 1, 19), '+0 days') IS substr(published_at, 1, 19)
                  AND published_at >= '1970' AND substr(published_at, 20) GLOB '.[0-9][0-9][0-9][0-9][0-9][0-9]'),
  PRIMARY KEY (name, version, locale, part)
) WITHOUT ROWID;

CREATE INDEX notify_template_newest ON notify_template (name, sequence);

CREATE TABLE notify_delivery (          -- one event, one recipient, one channel: what was asked for, where it stands
  id               INTEGER PRIMARY KEY AUTOINCREMENT,
  -- the intent: stated by the application, immutable
  event_id         TEXT NOT NULL CHECK (
                     typeof(event_id) = 'text' AND length(event_id) BETWEEN 1 AND 200 AND instr(event_id, '@') = 0
                     AND instr(event_id, char(0)) = 0
                     AND event_id NOT GLOB
                       '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*'),
  recipient_id     TEXT NOT NULL CHECK (
                     typeof(recipient_id) = 'text' AND length(recipient_id) BETWEEN 1 AND 200
                     AND instr(recipient_id, '@') = 0 AND instr(recipient_id, char(0)) = 0
                     AND recipient_id NOT GLOB
                       '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*'),
  channel          TEXT NOT NULL CHECK (channel IN ('email', 'sms')),
  lane             TEXT NOT NULL ON CONFLICT REPLACE DEFAULT ''  -- empty: the channel's name
                     CHECK (typeof(lane) <> 'blob'),
  region           TEXT NOT NULL ON CONFLICT REPLACE DEFAULT '' CHECK (typeof(region) <> 'blob'),
  topic            TEXT CHECK (typeof(topic) <> 'blob'),
  template         TEXT NOT NULL CHECK (template <> '' AND typeof(template) <> 'blob'),
  template_version TEXT                 -- NULL: the newest published one, pinned by the insert
                     CHECK (typeof(template_version) <> 'blob'),
  locale           TEXT CHECK (typeof(locale) <> 'blob'),
  variables        TEXT NOT NULL ON CONFLICT REPLACE DEFAULT '{}'
                     CHECK (CASE WHEN typeof(variables) = 'text' AND json_valid(variables)
                     THEN json_type(variables) = 'object' ELSE 0 END),
  attachments      TEXT NOT NULL ON CONFLICT REPLACE DEFAULT '[]'
                     CHECK (CASE WHEN typeof(attachments) = 'text' AND json_valid(attachments)
                     THEN json_type(attachments) = 'array' ELSE 0 END),
  destination      TEXT CHECK (typeof(destination) <> 'blob'),  -- NULL: the recipient's current endpoint
  due_at           TEXT NOT NULL ON CONFLICT REPLACE DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')
                     CONSTRAINT "notify_delivery.due_at is not a time" CHECK (
                       due_at NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
                       OR datetime(substr(due_at, 1, 19), '+0 days') IS substr(due_at, 1, 19)
                       AND due_at >= '1970' AND substr(due_at, 20) GLOB '.[0-9][0-9][0-9][0-9][0-9][0-9]'),
  expires_at       TEXT
                     CONSTRAINT "notify_delivery.expires_at is not a time" CHECK (
                       expires_at NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
                       OR datetime(substr(expires_at, 1, 19), '+0 days') IS substr(expires_at, 1, 19)
                       AND expires_at >= '1970' AND substr(expires_at, 20) GLOB '.[0-9][0-9][0-9][0-9][0-9][0-9]'),
  content_digest   TEXT CHECK (typeof(content_digest) <> 'blob'),  -- keyed; NULL until the first claim
  idempotency_key  TEXT GENERATED ALWAYS AS
                     (length(event_id) || ':' || event_id || ':' || recipient_id || ':' || channel) VIRTUAL,
  -- where it stands: written by notifyctl only
  state            TEXT NOT NULL DEFAULT 'queued' CHECK (state IN (
                     'queued', 'sending', 'temporary_failure', 'ambiguous', 'accepted', 'pending', 'delivered',
                     'permanent_failure', 'suppressed', 'expired', 'cancelled', 'dead_letter', 'unresolved')),
  reason           TEXT NOT NULL DEFAULT '' CHECK (typeof(reason) <> 'blob'),
  attempts_used    INTEGER NOT NULL DEFAULT 0
                  CHECK (typeof(attempts_used) = 'integer' AND attempts_used BETWEEN 0 AND 1000000000),
  first_tried_at   TEXT
                     CONSTRAINT "notify_delivery.first_tried_at is not a time" CHECK (
                       first_tried_at NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
                       OR datetime(substr(first_tried_at, 1, 19), '+0 days') IS substr(first_tried_at, 1, 19)
                       AND first_tried_at >= '1970'
                       AND substr(first_tried_at, 20) GLOB '.[0-9][0-9][0-9][0-9][0-9][0-9]'),
  doubt_since      TEXT                 -- start of the earliest attempt whose outcome is unknown
                     CONSTRAINT "notify_delivery.doubt_since is not a time" CHECK (
                       doubt_since NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
                       OR datetime(substr(doubt_since, 1, 19), '+0 days') IS substr(doubt_since, 1, 19)
                       AND doubt_since >= '1970' AND substr(doubt_since, 20) GLOB '.[0-9][0-9][0-9][0-9][0-9][0-9]'),
  endpoint_id      INTEGER CHECK (typeof(endpoint_id) IN ('integer', 'null')),
  fingerprint      TEXT                 -- keyed hash of the destination; NULL until the first claim
                     CHECK (typeof(fingerprint) <> 'blob'),
  transport        TEXT CHECK (typeof(transport) <> 'blob'),
  sender           TEXT CHECK (typeof(sender) <> 'blob'),
  message_date     TEXT CHECK (
                     datetime(substr(message_date, 1, 19), '+0 days') IS substr(message_date, 1, 19)
                     AND message_date >= '1970' AND substr(message_date, 20) GLOB '.[0-9][0-9][0-9][0-9][0-9][0-9]'),
  fencing_token    INTEGER NOT NULL DEFAULT 0  -- the work row's, saved when the delivery settles
                     CHECK (typeof(fencing_token) = 'integer' AND fencing_token BETWEEN 0 AND 1000000000000000000),
  wire_key         TEXT                 -- what providers see of the key; NULL until the first begin
                     CHECK (typeof(wire_key) <> 'blob'),
  remote_id        TEXT CHECK (typeof(remote_id) <> 'blob'),
  accepted_at      TEXT
                     CONSTRAINT "notify_delivery.accepted_at is not a time" CHECK (
                       accepted_at NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
                       OR datetime(substr(accepted_at, 1, 19), '+0 days') IS substr(accepted_at, 1, 19)
                       AND accepted_at >= '1970' AND substr(accepted_at, 20) GLOB '.[0-9][0-9][0-9][0-9][0-9][0-9]'),
  receipts_from    TEXT CHECK (         -- where the receipt deadline counts from; NULL: accepted_at
                     datetime(substr(receipts_from, 1, 19), '+0 days') IS substr(receipts_from, 1, 19)
                     AND receipts_from >= '1970' AND substr(receipts_from, 20) GLOB '.[0-9][0-9][0-9][0-9][0-9][0-9]'),
  settled_at       TEXT
                     CONSTRAINT "notify_delivery.settled_at is not a time" CHECK (
                       settled_at NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
                       OR datetime(substr(settled_at, 1, 19), '+0 days') IS substr(settled_at, 1, 19)
                       AND settled_at >= '1970' AND substr(settled_at, 20) GLOB '.[0-9][0-9][0-9][0-9][0-9][0-9]'),
  created_at       TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')
                     CONSTRAINT "notify_delivery.created_at is not a time" CHECK (
                       created_at NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
                       OR datetime(substr(created_at, 1, 19), '+0 days') IS substr(created_at, 1, 19)
                       AND created_at >= '1970' AND substr(created_at, 20) GLOB '.[0-9][0-9][0-9][0-9][0-9][0-9]'),
  updated_at       TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')
                     CONSTRAINT "notify_delivery.updated_at is not a time" CHECK (
                       updated_at NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
                       OR datetime(substr(updated_at, 1, 19), '+0 days') IS substr(updated_at, 1, 19)
                       AND updated_at >= '1970' AND substr(updated_at, 20) GLOB '.[0-9][0-9][0-9][0-9][0-9][0-9]'),
  sensitive        INTEGER NOT NULL ON CONFLICT REPLACE DEFAULT 0 CHECK (sensitive IN (0, 1)),
  batch            TEXT CHECK (typeof(batch) <> 'blob'),
  origin_id        INTEGER CHECK (typeof(origin_id) IN ('integer', 'null')),  -- the delivery that this one sends anew
  -- what was accepted is never led to another submission
  CONSTRAINT notify_delivery_accepted CHECK (
    accepted_at IS NULL OR state NOT IN ('queued', 'sending', 'temporary_failure', 'ambiguous'))
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
  key           TEXT NOT NULL PRIMARY KEY CHECK (typeof(key) <> 'blob'),
  delivery_id   INTEGER NOT NULL CHECK (typeof(delivery_id) = 'integer')
) WITHOUT ROWID;

CREATE TABLE notify_work (              -- what must happen next to a live delivery; gone once it settles
  delivery_id   INTEGER NOT NULL PRIMARY KEY REFERENCES notify_delivery (id),
  step          TEXT NOT NULL CHECK (step IN ('send', 'check', 'resolve')),
  lane          TEXT NOT NULL CHECK (typeof(lane) <> 'blob'),
  region        TEXT NOT NULL CHECK (typeof(region) <> 'blob'),
  due_at        TEXT NOT NULL
                  CONSTRAINT "notify_work.due_at is not a time" CHECK (
                    due_at NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
                    OR datetime(substr(due_at, 1, 19), '+0 days') IS substr(due_at, 1, 19)
                    AND due_at >= '1970' AND substr(due_at, 20) GLOB '.[0-9][0-9][0-9][0-9][0-9][0-9]'),
  eligible_at   TEXT NOT NULL           -- due, retry or check time, or the deadline of whoever owns it
                  CONSTRAINT "notify_work.eligible_at is not a time" CHECK (
                    eligible_at NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
                    OR datetime(substr(eligible_at, 1, 19), '+0 days') IS substr(eligible_at, 1, 19)
                    AND eligible_at >= '1970' AND substr(eligible_at, 20) GLOB '.[0-9][0-9][0-9][0-9][0-9][0-9]'),
  owner         TEXT CHECK (typeof(owner) <> 'blob'),  -- a run
  fencing_token INTEGER NOT NULL DEFAULT 0
                  CHECK (typeof(fencing_token) = 'integer' AND fencing_token BETWEEN 0 AND 1000000000000000000),
  tries         INTEGER NOT NULL DEFAULT 0 CHECK (typeof(tries) = 'integer' AND tries BETWEEN 0 AND 1000000000),
  mandate       TEXT CHECK (mandate IN ('replay', 'duplicate')),
  held          INTEGER NOT NULL DEFAULT 0 CHECK (held IN (0, 1))   -- in doubt, and a person has been told
);

CREATE INDEX notify_work_claim ON notify_work (step, lane, region, eligible_at, delivery_id);

-------------------------------------------------------------------------------------------------- what happened

CREATE TABLE notify_attempt (           -- one submission; opened before its first byte
  delivery_id    INTEGER NOT NULL CHECK (typeof(delivery_id) = 'integer'),
  number         INTEGER NOT NULL CHECK (typeof(number) = 'integer'),
  run            TEXT NOT NULL CHECK (typeof(run) <> 'blob'),
  fencing_token  INTEGER NOT NULL
                  CHECK (typeof(fencing_token) = 'integer' AND fencing_token BETWEEN 0 AND 1000000000000000000),
  transport      TEXT NOT NULL CHECK (typeof(transport) <> 'blob'),
  started        TEXT NOT NULL
                   CONSTRAINT "notify_attempt.started is not a time" CHECK (
                     started NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
                     OR datetime(substr(started, 1, 19), '+0 days') IS substr(started, 1, 19)
                     AND started >= '1970' AND substr(started, 20) GLOB '.[0-9][0-9][0-9][0-9][0-9][0-9]'),
  finished       TEXT
                   CONSTRAINT "notify_attempt.finished is not a time" CHECK (
                     finished NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
                     OR datetime(substr(finished, 1, 19), '+0 days') IS substr(finished, 1, 19)
                     AND finished >= '1970' AND substr(finished, 20) GLOB '.[0-9][0-9][0-9][0-9][0-9][0-9]'),
  outcome        TEXT CHECK (outcome IN (
                   'accepted', 'temporary_failure', 'rate_limited', 'unavailable', 'permanent_failure', 'ambiguous')),
  reason         TEXT NOT NULL DEFAULT '' CHECK (typeof(reason) <> 'blob'),
  code           TEXT NOT NULL DEFAULT '' CHECK (typeof(code) <> 'blob'),
  remote_id      TEXT CHECK (typeof(remote_id) <> 'blob'),
  remote_ids     TEXT CHECK (
                   remote_ids IS NULL OR CASE WHEN typeof(remote_ids) = 'text' AND json_valid(remote_ids)
                   THEN json_type(remote_ids) = 'array' ELSE 0 END),
  retry_after    REAL CHECK (typeof(retry_after) IN ('real', 'null') AND abs(retry_after) < 9e999),  -- seconds
  request_digest TEXT CHECK (typeof(request_digest) <> 'blob'),  -- keyed
  fingerprint    TEXT CHECK (typeof(fingerprint) <> 'blob'),
  mandate        TEXT CHECK (mandate IN ('replay', 'duplicate')),
  locale         TEXT CHECK (typeof(locale) <> 'blob'),
  encoding       TEXT CHECK (typeof(encoding) <> 'blob'),
  segments       INTEGER CHECK (typeof(segments) IN ('integer', 'null')),
  bytes          INTEGER CHECK (typeof(bytes) IN ('integer', 'null')),
  duration       REAL CHECK (typeof(duration) IN ('real', 'null') AND abs(duration) < 9e999),  -- seconds
  late           INTEGER NOT NULL DEFAULT 0 CHECK (late IN (0, 1)),
  PRIMARY KEY (delivery_id, number)
) WITHOUT ROWID;

CREATE TABLE notify_receipt (           -- one thing a provider said of a message
  id            INTEGER PRIMARY KEY AUTOINCREMENT,
  delivery_id   INTEGER NOT NULL CHECK (typeof(delivery_id) = 'integer'),
  at            TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000') CHECK (
                  datetime(substr(at, 1, 19), '+0 days') IS substr(at, 1, 19)
                  AND at >= '1970' AND substr(at, 20) GLOB '.[0-9][0-9][0-9][0-9][0-9][0-9]'),
  provider_time TEXT CHECK (
                  datetime(substr(provider_time, 1, 19), '+0 days') IS substr(provider_time, 1, 19)
                  AND provider_time >= '1970' AND substr(provider_time, 20) GLOB '.[0-9][0-9][0-9][0-9][0-9][0-9]'),
  remote_id     TEXT CHECK (typeof(remote_id) <> 'blob'),
  part          INTEGER NOT NULL DEFAULT 0 CHECK (typeof(part) = 'integer'),
  status        TEXT NOT NULL CHECK (typeof(status) <> 'blob'),
  reason        TEXT NOT NULL DEFAULT '' CHECK (typeof(reason) <> 'blob'),
  code          TEXT NOT NULL DEFAULT '' CHECK (typeof(code) <> 'blob')
);

-- What is said twice is kept once: a feed read again after a crash changes nothing.
CREATE UNIQUE INDEX notify_receipt_once ON notify_receipt (
  delivery_id, part, status, COALESCE(remote_id, ''), COALESCE(provider_time, '-'), reason, code);

CREATE TABLE notify_transition (        -- one change of state, with who made it
  id            INTEGER PRIMARY KEY AUTOINCREMENT,
  delivery_id   INTEGER NOT NULL CHECK (typeof(delivery_id) = 'integer'),
  at            TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')
                  CONSTRAINT "notify_transition.at is not a time" CHECK (
                    at NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
                    OR datetime(substr(at, 1, 19), '+0 days') IS substr(at, 1, 19)
                    AND at >= '1970' AND substr(at, 20) GLOB '.[0-9][0-9][0-9][0-9][0-9][0-9]'),
  "from"        TEXT CHECK (typeof("from") <> 'blob'),  -- NULL: the birth
  "to"          TEXT NOT NULL CHECK (typeof("to") <> 'blob'),
  reason        TEXT NOT NULL DEFAULT '' CHECK (typeof(reason) <> 'blob'),
  attempt       INTEGER CHECK (typeof(attempt) IN ('integer', 'null')),
  actor         TEXT NOT NULL CHECK (typeof(actor) <> 'blob'),  -- a run, a batch, or a person
  note          TEXT NOT NULL DEFAULT '' CHECK (typeof(note) <> 'blob')
);

CREATE INDEX notify_transition_delivery ON notify_transition (delivery_id);

----------------------------------------------------------------- recipients: append-only, the newest row counts

CREATE TABLE notify_endpoint (          -- a recipient's address on a channel
  id            INTEGER PRIMARY KEY AUTOINCREMENT,
  recipient_id  TEXT NOT NULL CHECK (
                  typeof(recipient_id) = 'text' AND length(recipient_id) BETWEEN 1 AND 200
                  AND instr(recipient_id, '@') = 0 AND instr(recipient_id, char(0)) = 0
                  AND recipient_id NOT GLOB
                    '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*'),
  channel       TEXT NOT NULL CHECK (channel IN ('email', 'sms')),
  address       TEXT NOT NULL CHECK (typeof(address) <> 'blob'),  -- empty: erased
  fingerprint   TEXT CHECK (typeof(fingerprint) <> 'blob'),  -- keyed hash; NULL until notifyctl has read the address
  actor         TEXT NOT NULL DEFAULT '' CHECK (typeof(actor) <> 'blob'),
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
  reason             TEXT NOT NULL DEFAULT 'manual' CHECK (reason <> '' AND typeof(reason) <> 'blob'),
  lifted             INTEGER NOT NULL DEFAULT 0 CHECK (lifted IN (0, 1)),
  fingerprint        TEXT               -- 'invalid_recipient' and 'hard_bounce' concern this address only
                       CHECK (typeof(fingerprint) <> 'blob'),
  source_delivery_id INTEGER CHECK (typeof(source_delivery_id) IN ('integer', 'null')),
  remote_id          TEXT CHECK (typeof(remote_id) <> 'blob'),
  actor              TEXT NOT NULL DEFAULT '' CHECK (typeof(actor) <> 'blob'),
  note               TEXT NOT NULL DEFAULT '' CHECK (typeof(note) <> 'blob'),
  at                 TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')
);

CREATE INDEX notify_suppression_newest ON notify_suppression (recipient_id, channel, id);

CREATE TABLE notify_consent (           -- consent of a recipient to a topic on a channel, given or revoked
  id            INTEGER PRIMARY KEY AUTOINCREMENT,
  recipient_id  TEXT NOT NULL CHECK (
                  typeof(recipient_id) = 'text' AND length(recipient_id) BETWEEN 1 AND 200
                  AND instr(recipient_id, '@') = 0 AND instr(recipient_id, char(0)) = 0
                  AND recipient_id NOT GLOB
                    '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*'),
  channel       TEXT NOT NULL CHECK (channel IN ('email', 'sms')),
  topic         TEXT NOT NULL CHECK (topic <> '' AND typeof(topic) <> 'blob'),
  granted       INTEGER NOT NULL CHECK (granted IN (0, 1)),
  actor         TEXT NOT NULL DEFAULT '' CHECK (typeof(actor) <> 'blob'),
  note          TEXT NOT NULL DEFAULT '' CHECK (typeof(note) <> 'blob'),
  at            TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')
);

CREATE INDEX notify_consent_newest ON notify_consent (recipient_id, channel, topic, id);

------------------------------------------------------------------------------- what all runs on all hosts share

CREATE TABLE notify_gate (              -- a pause, a cool-down or a breaker
  scope         TEXT NOT NULL CHECK (scope IN ('lane', 'transport')),
  name          TEXT NOT NULL CHECK (typeof(name) <> 'blob'),
  kind          TEXT NOT NULL CHECK (kind IN ('pause', 'cooldown', 'breaker')),
  until         TEXT                    -- NULL: until a person resumes it; of a probe that is out: its deadline
                  CONSTRAINT "notify_gate.until is not a time" CHECK (
                    until NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
                    OR datetime(substr(until, 1, 19), '+0 days') IS substr(until, 1, 19)
                    AND until >= '1970' AND substr(until, 20) GLOB '.[0-9][0-9][0-9][0-9][0-9][0-9]'),
  level         INTEGER NOT NULL DEFAULT 0 CHECK (typeof(level) = 'integer' AND level BETWEEN 0 AND 1000000000),
  probe_owner   TEXT CHECK (typeof(probe_owner) <> 'blob'),  -- the run whose attempt is the probe
  reason        TEXT NOT NULL DEFAULT '' CHECK (typeof(reason) <> 'blob'),
  actor         TEXT NOT NULL DEFAULT '' CHECK (typeof(actor) <> 'blob'),
  at            TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000') CHECK (
                  datetime(substr(at, 1, 19), '+0 days') IS substr(at, 1, 19)
                  AND at >= '1970' AND substr(at, 20) GLOB '.[0-9][0-9][0-9][0-9][0-9][0-9]'),
  PRIMARY KEY (scope, name, kind)
) WITHOUT ROWID;

CREATE TABLE notify_gate_trail (        -- what happened to gates, and who did it; append-only
  id            INTEGER PRIMARY KEY AUTOINCREMENT,
  at            TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000') CHECK (
                  datetime(substr(at, 1, 19), '+0 days') IS substr(at, 1, 19)
                  AND at >= '1970' AND substr(at, 20) GLOB '.[0-9][0-9][0-9][0-9][0-9][0-9]'),
  scope         TEXT NOT NULL CHECK (typeof(scope) <> 'blob'),
  name          TEXT NOT NULL CHECK (typeof(name) <> 'blob'),
  kind          TEXT NOT NULL CHECK (typeof(kind) <> 'blob'),
  action        TEXT NOT NULL CHECK (action IN ('closed', 'probed', 'opened')),
  until         TEXT CHECK (
                  datetime(substr(until, 1, 19), '+0 days') IS substr(until, 1, 19)
                  AND until >= '1970' AND substr(until, 20) GLOB '.[0-9][0-9][0-9][0-9][0-9][0-9]'),
  level         INTEGER NOT NULL DEFAULT 0 CHECK (typeof(level) = 'integer' AND level BETWEEN 0 AND 1000000000),
  reason        TEXT NOT NULL DEFAULT '' CHECK (typeof(reason) <> 'blob'),
  actor         TEXT NOT NULL CHECK (typeof(actor) <> 'blob')  -- a run, or a person
);

CREATE TABLE notify_pace (              -- one rate limit's state: of a lane, a transport or a destination fingerprint
  -- a year is left for what is added to these times
  key           TEXT NOT NULL CHECK (typeof(key) <> 'blob'),
  rate          TEXT NOT NULL CHECK (typeof(rate) <> 'blob'),
  tat           TEXT CHECK (            -- /s and /m: theoretical arrival time of the next message
                  datetime(substr(tat, 1, 19), '+0 days') IS substr(tat, 1, 19)
                  AND tat >= '1970' AND tat < '9999' AND substr(tat, 20) GLOB '.[0-9][0-9][0-9][0-9][0-9][0-9]'),
  window_start  TEXT CHECK (            -- /h and /d
                  datetime(substr(window_start, 1, 19), '+0 days') IS substr(window_start, 1, 19)
                  AND window_start >= '1970' AND window_start < '9999'
                  AND substr(window_start, 20) GLOB '.[0-9][0-9][0-9][0-9][0-9][0-9]'),
  count         INTEGER NOT NULL DEFAULT 0
                  CHECK (typeof(count) = 'integer' AND count BETWEEN 0 AND 1000000000000000000),
  PRIMARY KEY (key, rate)
) WITHOUT ROWID;

CREATE TABLE notify_run (               -- one tick that did something
  id            TEXT NOT NULL PRIMARY KEY CHECK (typeof(id) <> 'blob'),
  command       TEXT NOT NULL CHECK (typeof(command) <> 'blob'),
  host          TEXT NOT NULL CHECK (typeof(host) <> 'blob'),
  pid           INTEGER NOT NULL CHECK (typeof(pid) = 'integer'),
  version       TEXT NOT NULL CHECK (typeof(version) <> 'blob'),
  started       TEXT NOT NULL CHECK (
                  datetime(substr(started, 1, 19), '+0 days') IS substr(started, 1, 19)
                  AND started >= '1970' AND substr(started, 20) GLOB '.[0-9][0-9][0-9][0-9][0-9][0-9]'),
  finished      TEXT CHECK (
                  datetime(substr(finished, 1, 19), '+0 days') IS substr(finished, 1, 19)
                  AND finished >= '1970' AND substr(finished, 20) GLOB '.[0-9][0-9][0-9][0-9][0-9][0-9]'),
  exit_code     INTEGER CHECK (typeof(exit_code) IN ('integer', 'null')),
  counts        TEXT NOT NULL DEFAULT '{}' CHECK (
                  CASE WHEN typeof(counts) = 'text' AND json_valid(counts) THEN json_type(counts) = 'object' ELSE 0 END)
) WITHOUT ROWID;

CREATE INDEX notify_run_started ON notify_run (started);

CREATE TABLE notify_cursor (            -- how far a mailbox or event feed was read, and who is reading it
  transport     TEXT NOT NULL PRIMARY KEY CHECK (typeof(transport) <> 'blob'),
  cursor        TEXT NOT NULL DEFAULT '' CHECK (typeof(cursor) <> 'blob'),
  eligible_at   TEXT NOT NULL CHECK (   -- the next read, or the deadline of whoever reads it now
                  datetime(substr(eligible_at, 1, 19), '+0 days') IS substr(eligible_at, 1, 19)
                  AND eligible_at >= '1970' AND substr(eligible_at, 20) GLOB '.[0-9][0-9][0-9][0-9][0-9][0-9]'),
  owner         TEXT CHECK (typeof(owner) <> 'blob'),  -- a run
  fencing_token INTEGER NOT NULL DEFAULT 0
                  CHECK (typeof(fencing_token) = 'integer' AND fencing_token BETWEEN 0 AND 1000000000000000000),
  at            TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000') CHECK (
                  datetime(substr(at, 1, 19), '+0 days') IS substr(at, 1, 19)
                  AND at >= '1970' AND substr(at, 20) GLOB '.[0-9][0-9][0-9][0-9][0-9][0-9]')
) WITHOUT ROWID;

--------------------------------------------------------------------------------------------- what an insert decides

-- A pruned delivery's key is remembered: the same event is never sent again, and says nothing about it.
CREATE TRIGGER notify_delivery_pruned BEFORE INSERT ON notify_delivery
WHEN EXISTS (SELECT 1 FROM notify_key
             WHERE key = length(NEW.event_id) || ':' || NEW.event_id || ':' || NEW.recipient_id || ':' || NEW.channel)
  AND NOT EXISTS (
    SELECT 1 FROM notify_delivery
    WHERE idempotency_key =
      length(NEW.event_id) || ':' || NEW.event_id || ':' || NEW.recipient_id || ':' || NEW.channel)
BEGIN
  SELECT RAISE(IGNORE);
END;

-- AFTER, because a BEFORE trigger that aborts would break ON CONFLICT DO NOTHING, and REPLACE fires no DELETE trigger:
-- what REPLACE removed is still known by its key and by its trail.
CREATE TRIGGER notify_delivery_born AFTER INSERT ON notify_delivery
BEGIN
  SELECT RAISE(ABORT, 'notify_delivery: REPLACE would forget a delivery; use ON CONFLICT DO NOTHING')
  WHERE EXISTS (SELECT 1 FROM notify_key WHERE key = NEW.idempotency_key)
     OR EXISTS (SELECT 1 FROM notify_transition WHERE delivery_id = NEW.id);
  SELECT RAISE(ABORT, 'notify_delivery.state: a delivery is born queued, or settled when history is imported')
  WHERE NEW.state IN ('sending', 'temporary_failure', 'ambiguous', 'pending');

  SELECT RAISE(ABORT, 'notify_delivery.due_at is not a time like 2027-03-28T09:00:00Z')
  WHERE NEW.due_at NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
    AND NOT (date(substr(NEW.due_at, 1, 10), '+0 days') IS substr(NEW.due_at, 1, 10)
    AND substr(NEW.due_at, 11, 1) IN ('T', ' ') AND length(NEW.due_at) >= 16
    AND COALESCE(datetime(NEW.due_at) BETWEEN '1970' AND '9999-12-31 24', 0));
  SELECT RAISE(ABORT, 'notify_delivery.expires_at is not a time like 2027-03-28T09:00:00Z')
  WHERE NEW.expires_at NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
    AND NOT (date(substr(NEW.expires_at, 1, 10), '+0 days') IS substr(NEW.expires_at, 1, 10)
    AND substr(NEW.expires_at, 11, 1) IN ('T', ' ') AND length(NEW.expires_at) >= 16
    AND COALESCE(datetime(NEW.expires_at) BETWEEN '1970' AND '9999-12-31 24', 0));

  -- what was left out, or is a time not in the form that sorts: any update of a time fires notify_delivery_times
  UPDATE notify_delivery SET
    lane = CASE WHEN lane = '' THEN channel ELSE lane END,
    topic = NULLIF(topic, ''), locale = NULLIF(locale, ''), destination = NULLIF(destination, ''),
    template_version = COALESCE(NULLIF(template_version, ''), (
      SELECT t.version FROM notify_template t WHERE t.name = template ORDER BY t.sequence DESC LIMIT 1)),
    due_at = due_at,
    settled_at = CASE WHEN state = 'queued' THEN NULL
      ELSE COALESCE(settled_at, strftime('%Y-%m-%d %H:%M:%f', 'now') || '000') END,
    accepted_at = CASE WHEN state NOT IN ('accepted', 'delivered', 'unresolved') THEN accepted_at
      ELSE COALESCE(accepted_at, strftime('%Y-%m-%d %H:%M:%f', 'now') || '000') END
  WHERE id = NEW.id AND (
    state <> 'queued' OR lane = '' OR topic = '' OR locale = '' OR destination = ''
    OR template_version IS NULL OR template_version = ''
    OR due_at NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
    OR expires_at NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
    OR first_tried_at NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
    OR doubt_since NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
    OR accepted_at NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
    OR settled_at NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
    OR created_at NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
    OR updated_at NOT GLOB '????-??-?? ??:??:??.?????[0-9]');

  -- a suppressed recipient, or one who has revoked consent: nothing waits in the queue
  UPDATE notify_delivery SET state = 'suppressed',
    settled_at = strftime('%Y-%m-%d %H:%M:%f', 'now') || '000',
    reason = (
    SELECT s.reason FROM notify_suppression s
    WHERE s.recipient_id = NEW.recipient_id AND s.channel = NEW.channel AND NOT s.lifted
      AND s.id > COALESCE((SELECT max(l.id) FROM notify_suppression l
                           WHERE l.recipient_id = NEW.recipient_id AND l.channel = NEW.channel AND l.lifted), 0)
      AND (s.reason NOT IN ('invalid_recipient', 'hard_bounce') OR s.fingerprint IS NULL
           OR s.fingerprint = NEW.fingerprint)
    ORDER BY s.id DESC LIMIT 1)
  WHERE id = NEW.id AND NEW.state = 'queued' AND EXISTS (
    SELECT 1 FROM notify_suppression s
    WHERE s.recipient_id = NEW.recipient_id AND s.channel = NEW.channel AND NOT s.lifted
      AND s.id > COALESCE((SELECT max(l.id) FROM notify_suppression l
                           WHERE l.recipient_id = NEW.recipient_id AND l.channel = NEW.channel AND l.lifted), 0)
      AND (s.reason NOT IN ('invalid_recipient', 'hard_bounce') OR s.fingerprint IS NULL
           OR s.fingerprint = NEW.fingerprint));
  UPDATE notify_delivery SET state = 'suppressed',
    settled_at = strftime('%Y-%m-%d %H:%M:%f', 'now') || '000', reason = 'consent_revoked'
  WHERE id = NEW.id AND state = 'queued' AND 0 = (
    SELECT c.granted FROM notify_consent c
    WHERE c.recipient_id = NEW.recipient_id AND c.channel = NEW.channel AND c.topic = NEW.topic
    ORDER BY c.id DESC LIMIT 1);

  INSERT INTO notify_work (delivery_id, step, lane, region, due_at, eligible_at)
    SELECT id, 'send', lane, region, due_at, due_at FROM notify_delivery WHERE id = NEW.id AND state = 'queued';
  INSERT INTO notify_transition (delivery_id, "to", reason, actor)
    SELECT id, state, reason, COALESCE(NULLIF(batch, ''), 'sql') FROM notify_delivery WHERE id = NEW.id;
  INSERT INTO notify_key (key, delivery_id) VALUES (NEW.idempotency_key, NEW.id);
END;

CREATE TRIGGER notify_delivery_identity BEFORE UPDATE OF id, event_id, recipient_id, channel ON notify_delivery
WHEN NEW.id IS NOT OLD.id OR NEW.event_id IS NOT OLD.event_id OR NEW.recipient_id IS NOT OLD.recipient_id
  OR NEW.channel IS NOT OLD.channel
BEGIN
  SELECT RAISE(ABORT, 'notify_delivery: event_id, recipient_id and channel are the delivery''s identity');
END;

-- What is marked sensitive is said once: a delivery at rest keeps the digest of its variables, not their values. What a
-- person may still requeue as it is keeps them.
CREATE TRIGGER notify_delivery_erased AFTER UPDATE OF state, settled_at ON notify_delivery
WHEN NEW.sensitive AND NEW.settled_at IS NOT NULL AND NEW.state NOT IN ('dead_letter', 'unresolved')
  AND NEW.variables <> '{}'
BEGIN
  UPDATE notify_delivery SET variables = '{}' WHERE id = NEW.id;
END;

-- The foreign key says the same, but clients leave foreign keys off by default.
CREATE TRIGGER notify_delivery_alive BEFORE DELETE ON notify_delivery
WHEN EXISTS (SELECT 1 FROM notify_work WHERE delivery_id = OLD.id)
BEGIN
  SELECT RAISE(ABORT, 'notify_delivery: a live delivery cannot be deleted; cancel it: notifyctl cancel');
END;

CREATE TRIGGER notify_template_published BEFORE UPDATE ON notify_template
BEGIN
  SELECT RAISE(ABORT, 'notify_template: a published version never changes; publish a new one');
END;

------------------------------------------------------- recipients: append-only; a "no" settles what waits in the queue

CREATE TRIGGER notify_endpoint_replace BEFORE INSERT ON notify_endpoint
WHEN EXISTS (SELECT 1 FROM notify_endpoint WHERE id = NEW.id)
BEGIN
  SELECT RAISE(ABORT, 'notify_endpoint is append-only: insert a new row');
END;

CREATE TRIGGER notify_endpoint_delete BEFORE DELETE ON notify_endpoint
BEGIN
  SELECT RAISE(ABORT, 'notify_endpoint is append-only: insert a new row');
END;

-- Notifyctl fills in the fingerprint once; an erasure empties address and fingerprint, and keeps the row.
CREATE TRIGGER notify_endpoint_update BEFORE UPDATE OF id, recipient_id, channel, address, fingerprint, actor
ON notify_endpoint
WHEN NEW.id IS NOT OLD.id OR NEW.recipient_id IS NOT OLD.recipient_id OR NEW.channel IS NOT OLD.channel
  OR NEW.actor IS NOT OLD.actor OR NEW.address NOT IN (OLD.address, '')
  OR NEW.fingerprint IS NOT OLD.fingerprint AND OLD.fingerprint IS NOT NULL AND NEW.fingerprint IS NOT NULL
BEGIN
  SELECT RAISE(ABORT, 'notify_endpoint is append-only: insert a new row');
END;

CREATE TRIGGER notify_endpoint_update_at BEFORE UPDATE OF at ON notify_endpoint
WHEN (datetime(substr(OLD.at, 1, 19), '+0 days') IS substr(OLD.at, 1, 19)
    AND substr(OLD.at, 20) GLOB '.[0-9][0-9][0-9][0-9][0-9][0-9]' AND OLD.at BETWEEN '1970' AND '9999-12-31 24')
  OR NEW.at IS NOT (strftime('%Y-%m-%d %H:%M:%f', OLD.at) || '000')
BEGIN
  SELECT RAISE(ABORT, 'notify_endpoint is append-only: insert a new row');
END;

CREATE TRIGGER notify_endpoint_at AFTER INSERT ON notify_endpoint
WHEN NOT (datetime(substr(NEW.at, 1, 19), '+0 days') IS substr(NEW.at, 1, 19)
    AND substr(NEW.at, 20) GLOB '.[0-9][0-9][0-9][0-9][0-9][0-9]' AND NEW.at BETWEEN '1970' AND '9999-12-31 24')
BEGIN
  SELECT RAISE(ABORT, 'notify_endpoint.at is not a time like 2027-03-28T09:00:00Z')
  WHERE NOT (date(substr(NEW.at, 1, 10), '+0 days') IS substr(NEW.at, 1, 10)
    AND substr(NEW.at, 11, 1) IN ('T', ' ') AND length(NEW.at) >= 16
    AND COALESCE(datetime(NEW.at) BETWEEN '1970' AND '9999-12-31 24', 0));
  UPDATE notify_endpoint SET
    at = strftime('%Y-%m-%d %H:%M:%f', NEW.at) || '000'
  WHERE id = NEW.id;
END;

CREATE TRIGGER notify_suppression_replace BEFORE INSERT ON notify_suppression
WHEN EXISTS (SELECT 1 FROM notify_suppression WHERE id = NEW.id)
BEGIN
  SELECT RAISE(ABORT, 'notify_suppression is append-only: insert a new row');
END;

CREATE TRIGGER notify_suppression_delete BEFORE DELETE ON notify_suppression
BEGIN
  SELECT RAISE(ABORT, 'notify_suppression is append-only: insert a new row');
END;

CREATE TRIGGER notify_suppression_update BEFORE UPDATE OF
  id, recipient_id, channel, reason, lifted, fingerprint, source_delivery_id, remote_id, actor, note
ON notify_suppression
BEGIN
  SELECT RAISE(ABORT, 'notify_suppression is append-only: insert a new row');
END;

CREATE TRIGGER notify_suppression_update_at BEFORE UPDATE OF at ON notify_suppression
WHEN (datetime(substr(OLD.at, 1, 19), '+0 days') IS substr(OLD.at, 1, 19)
    AND substr(OLD.at, 20) GLOB '.[0-9][0-9][0-9][0-9][0-9][0-9]' AND OLD.at BETWEEN '1970' AND '9999-12-31 24')
  OR NEW.at IS NOT (strftime('%Y-%m-%d %H:%M:%f', OLD.at) || '000')
BEGIN
  SELECT RAISE(ABORT, 'notify_suppression is append-only: insert a new row');
END;

CREATE TRIGGER notify_suppression_at AFTER INSERT ON notify_suppression
WHEN NOT (datetime(substr(NEW.at, 1, 19), '+0 days') IS substr(NEW.at, 1, 19)
    AND substr(NEW.at, 20) GLOB '.[0-9][0-9][0-9][0-9][0-9][0-9]' AND NEW.at BETWEEN '1970' AND '9999-12-31 24')
BEGIN
  SELECT RAISE(ABORT, 'notify_suppression.at is not a time like 2027-03-28T09:00:00Z')
  WHERE NOT (date(substr(NEW.at, 1, 10), '+0 days') IS substr(NEW.at, 1, 10)
    AND substr(NEW.at, 11, 1) IN ('T', ' ') AND length(NEW.at) >= 16
    AND COALESCE(datetime(NEW.at) BETWEEN '1970' AND '9999-12-31 24', 0));
  UPDATE notify_suppression SET
    at = strftime('%Y-%m-%d %H:%M:%f', NEW.at) || '000'
  WHERE id = NEW.id;
END;

-- Rows that a run has claimed and not begun are settled too: the run's begin finds its token gone. A send without a
-- mandate is queued or a temporary_failure. CROSS JOIN and +step: from the recipient's few rows, never the backlog's.
CREATE TRIGGER notify_suppression_sweep AFTER INSERT ON notify_suppression
WHEN NOT NEW.lifted
BEGIN
  INSERT INTO notify_transition (delivery_id, "from", "to", reason, actor)
    SELECT d.id, d.state, 'suppressed', NEW.reason, COALESCE(NULLIF(NEW.actor, ''), 'sql')
    FROM notify_delivery d CROSS JOIN notify_work w ON w.delivery_id = d.id
    WHERE d.recipient_id = NEW.recipient_id AND d.channel = NEW.channel
      AND w.step = 'send' AND w.mandate IS NULL
      AND (NEW.reason NOT IN ('invalid_recipient', 'hard_bounce') OR NEW.fingerprint IS NULL
           OR d.fingerprint = NEW.fingerprint)
    ORDER BY d.id;
  UPDATE notify_delivery SET state = 'suppressed', reason = NEW.reason,
    settled_at = strftime('%Y-%m-%d %H:%M:%f', 'now') || '000',
    updated_at = strftime('%Y-%m-%d %H:%M:%f', 'now') || '000',
    fencing_token = 1 + (SELECT w.fencing_token FROM notify_work w WHERE w.delivery_id = notify_delivery.id)
  WHERE id IN (
    SELECT d.id FROM notify_delivery d CROSS JOIN notify_work w ON w.delivery_id = d.id
    WHERE d.recipient_id = NEW.recipient_id AND d.channel = NEW.channel
      AND w.step = 'send' AND w.mandate IS NULL
      AND (NEW.reason NOT IN ('invalid_recipient', 'hard_bounce') OR NEW.fingerprint IS NULL
           OR d.fingerprint = NEW.fingerprint));
  DELETE FROM notify_work WHERE +step = 'send' AND mandate IS NULL AND delivery_id IN (
    SELECT d.id FROM notify_delivery d
    WHERE d.recipient_id = NEW.recipient_id AND d.channel = NEW.channel
      AND (NEW.reason NOT IN ('invalid_recipient', 'hard_bounce') OR NEW.fingerprint IS NULL
           OR d.fingerprint = NEW.fingerprint));
END;

CREATE TRIGGER notify_consent_replace BEFORE INSERT ON notify_consent
WHEN EXISTS (SELECT 1 FROM notify_consent WHERE id = NEW.id)
BEGIN
  SELECT RAISE(ABORT, 'notify_consent is append-only: insert a new row');
END;

CREATE TRIGGER notify_consent_delete BEFORE DELETE ON notify_consent
BEGIN
  SELECT RAISE(ABORT, 'notify_consent is append-only: insert a new row');
END;

CREATE TRIGGER notify_consent_update BEFORE UPDATE OF
  id, recipient_id, channel, topic, granted, actor, note
ON notify_consent
BEGIN
  SELECT RAISE(ABORT, 'notify_consent is append-only: insert a new row');
END;

CREATE TRIGGER notify_consent_update_at BEFORE UPDATE OF at ON notify_consent
WHEN (datetime(substr(OLD.at, 1, 19), '+0 days') IS substr(OLD.at, 1, 19)
    AND substr(OLD.at, 20) GLOB '.[0-9][0-9][0-9][0-9][0-9][0-9]' AND OLD.at BETWEEN '1970' AND '9999-12-31 24')
  OR NEW.at IS NOT (strftime('%Y-%m-%d %H:%M:%f', OLD.at) || '000')
BEGIN
  SELECT RAISE(ABORT, 'notify_consent is append-only: insert a new row');
END;

CREATE TRIGGER notify_consent_at AFTER INSERT ON notify_consent
WHEN NOT (datetime(substr(NEW.at, 1, 19), '+0 days') IS substr(NEW.at, 1, 19)
    AND substr(NEW.at, 20) GLOB '.[0-9][0-9][0-9][0-9][0-9][0-9]' AND NEW.at BETWEEN '1970' AND '9999-12-31 24')
BEGIN
  SELECT RAISE(ABORT, 'notify_consent.at is not a time like 2027-03-28T09:00:00Z')
  WHERE NOT (date(substr(NEW.at, 1, 10), '+0 days') IS substr(NEW.at, 1, 10)
    AND substr(NEW.at, 11, 1) IN ('T', ' ') AND length(NEW.at) >= 16
    AND COALESCE(datetime(NEW.at) BETWEEN '1970' AND '9999-12-31 24', 0));
  UPDATE notify_consent SET
    at = strftime('%Y-%m-%d %H:%M:%f', NEW.at) || '000'
  WHERE id = NEW.id;
END;

CREATE TRIGGER notify_consent_sweep AFTER INSERT ON notify_consent
WHEN NOT NEW.granted
BEGIN
  INSERT INTO notify_transition (delivery_id, "from", "to", reason, actor)
    SELECT d.id, d.state, 'suppressed', 'consent_revoked', COALESCE(NULLIF(NEW.actor, ''), 'sql')
    FROM notify_delivery d CROSS JOIN notify_work w ON w.delivery_id = d.id
    WHERE d.recipient_id = NEW.recipient_id AND d.channel = NEW.channel
      AND w.step = 'send' AND w.mandate IS NULL AND d.topic = NEW.topic
    ORDER BY d.id;
  UPDATE notify_delivery SET state = 'suppressed', reason = 'consent_revoked',
    settled_at = strftime('%Y-%m-%d %H:%M:%f', 'now') || '000',
    updated_at = strftime('%Y-%m-%d %H:%M:%f', 'now') || '000',
    fencing_token = 1 + (SELECT w.fencing_token FROM notify_work w WHERE w.delivery_id = notify_delivery.id)
  WHERE id IN (
    SELECT d.id FROM notify_delivery d CROSS JOIN notify_work w ON w.delivery_id = d.id
    WHERE d.recipient_id = NEW.recipient_id AND d.channel = NEW.channel
      AND w.step = 'send' AND w.mandate IS NULL AND d.topic = NEW.topic);
  DELETE FROM notify_work WHERE +step = 'send' AND mandate IS NULL AND delivery_id IN (
    SELECT d.id FROM notify_delivery d
    WHERE d.recipient_id = NEW.recipient_id AND d.channel = NEW.channel AND d.topic = NEW.topic);
END;

-------------------------------------------------------------- times that a person rewrites are honoured in any ISO form

-- WHEN asks for the form alone, which is cheap: it is evaluated at every write of the tool. No other ISO form has it.

CREATE TRIGGER notify_delivery_times AFTER UPDATE OF due_at, expires_at, first_tried_at, doubt_since, accepted_at,
  settled_at, created_at, updated_at
ON notify_delivery WHEN NEW.due_at NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
  OR NEW.expires_at NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
  OR NEW.first_tried_at NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
  OR NEW.doubt_since NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
  OR NEW.accepted_at NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
  OR NEW.settled_at NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
  OR NEW.created_at NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
  OR NEW.updated_at NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
BEGIN
  SELECT CASE name
    WHEN 'due_at' THEN RAISE(ABORT, 'notify_delivery.due_at is not a time like 2027-03-28T09:00:00Z')
    WHEN 'expires_at' THEN RAISE(ABORT, 'notify_delivery.expires_at is not a time like 2027-03-28T09:00:00Z')
    WHEN 'first_tried_at' THEN RAISE(ABORT, 'notify_delivery.first_tried_at is not a time like 2027-03-28T09:00:00Z')
    WHEN 'doubt_since' THEN RAISE(ABORT, 'notify_delivery.doubt_since is not a time like 2027-03-28T09:00:00Z')
    WHEN 'accepted_at' THEN RAISE(ABORT, 'notify_delivery.accepted_at is not a time like 2027-03-28T09:00:00Z')
    WHEN 'settled_at' THEN RAISE(ABORT, 'notify_delivery.settled_at is not a time like 2027-03-28T09:00:00Z')
    WHEN 'created_at' THEN RAISE(ABORT, 'notify_delivery.created_at is not a time like 2027-03-28T09:00:00Z')
    WHEN 'updated_at' THEN RAISE(ABORT, 'notify_delivery.updated_at is not a time like 2027-03-28T09:00:00Z')
    END
  FROM (SELECT 'due_at' AS name, NEW.due_at AS x UNION ALL SELECT 'expires_at', NEW.expires_at
    UNION ALL SELECT 'first_tried_at', NEW.first_tried_at UNION ALL SELECT 'doubt_since', NEW.doubt_since
    UNION ALL SELECT 'accepted_at', NEW.accepted_at UNION ALL SELECT 'settled_at', NEW.settled_at
    UNION ALL SELECT 'created_at', NEW.created_at UNION ALL SELECT 'updated_at', NEW.updated_at)
  WHERE x NOT GLOB '????-??-?? ??:??:??.?????[0-9]' AND NOT (date(substr(x, 1, 10), '+0 days') IS substr(x, 1, 10)
    AND substr(x, 11, 1) IN ('T', ' ') AND length(x) >= 16
    AND COALESCE(datetime(x) BETWEEN '1970' AND '9999-12-31 24', 0));
  UPDATE notify_delivery SET
    due_at = CASE WHEN NEW.due_at GLOB '????-??-?? ??:??:??.?????[0-9]' THEN NEW.due_at
      ELSE strftime('%Y-%m-%d %H:%M:%f', NEW.due_at) || '000' END,
    expires_at = CASE WHEN NEW.expires_at GLOB '????-??-?? ??:??:??.?????[0-9]' THEN NEW.expires_at
      ELSE strftime('%Y-%m-%d %H:%M:%f', NEW.expires_at) || '000' END,
    first_tried_at = CASE WHEN NEW.first_tried_at GLOB '????-??-?? ??:??:??.?????[0-9]' THEN NEW.first_tried_at
      ELSE strftime('%Y-%m-%d %H:%M:%f', NEW.first_tried_at) || '000' END,
    doubt_since = CASE WHEN NEW.doubt_since GLOB '????-??-?? ??:??:??.?????[0-9]' THEN NEW.doubt_since
      ELSE strftime('%Y-%m-%d %H:%M:%f', NEW.doubt_since) || '000' END,
    accepted_at = CASE WHEN NEW.accepted_at GLOB '????-??-?? ??:??:??.?????[0-9]' THEN NEW.accepted_at
      ELSE strftime('%Y-%m-%d %H:%M:%f', NEW.accepted_at) || '000' END,
    settled_at = CASE WHEN NEW.settled_at GLOB '????-??-?? ??:??:??.?????[0-9]' THEN NEW.settled_at
      ELSE strftime('%Y-%m-%d %H:%M:%f', NEW.settled_at) || '000' END,
    created_at = CASE WHEN NEW.created_at GLOB '????-??-?? ??:??:??.?????[0-9]' THEN NEW.created_at
      ELSE strftime('%Y-%m-%d %H:%M:%f', NEW.created_at) || '000' END,
    updated_at = CASE WHEN NEW.updated_at GLOB '????-??-?? ??:??:??.?????[0-9]' THEN NEW.updated_at
      ELSE strftime('%Y-%m-%d %H:%M:%f', NEW.updated_at) || '000' END
  WHERE id = NEW.id;
END;

CREATE TRIGGER notify_work_times AFTER UPDATE OF due_at, eligible_at
ON notify_work WHEN NEW.due_at NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
  OR NEW.eligible_at NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
BEGIN
  SELECT CASE name
    WHEN 'due_at' THEN RAISE(ABORT, 'notify_work.due_at is not a time like 2027-03-28T09:00:00Z')
    WHEN 'eligible_at' THEN RAISE(ABORT, 'notify_work.eligible_at is not a time like 2027-03-28T09:00:00Z')
    END
  FROM (SELECT 'due_at' AS name, NEW.due_at AS x UNION ALL SELECT 'eligible_at', NEW.eligible_at)
  WHERE x NOT GLOB '????-??-?? ??:??:??.?????[0-9]' AND NOT (date(substr(x, 1, 10), '+0 days') IS substr(x, 1, 10)
    AND substr(x, 11, 1) IN ('T', ' ') AND length(x) >= 16
    AND COALESCE(datetime(x) BETWEEN '1970' AND '9999-12-31 24', 0));
  UPDATE notify_work SET
    due_at = CASE WHEN NEW.due_at GLOB '????-??-?? ??:??:??.?????[0-9]' THEN NEW.due_at
      ELSE strftime('%Y-%m-%d %H:%M:%f', NEW.due_at) || '000' END,
    eligible_at = CASE WHEN NEW.eligible_at GLOB '????-??-?? ??:??:??.?????[0-9]' THEN NEW.eligible_at
      ELSE strftime('%Y-%m-%d %H:%M:%f', NEW.eligible_at) || '000' END
  WHERE delivery_id = NEW.delivery_id;
END;

CREATE TRIGGER notify_attempt_times AFTER UPDATE OF started, finished
ON notify_attempt WHEN NEW.started NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
  OR NEW.finished NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
BEGIN
  SELECT CASE name
    WHEN 'started' THEN RAISE(ABORT, 'notify_attempt.started is not a time like 2027-03-28T09:00:00Z')
    WHEN 'finished' THEN RAISE(ABORT, 'notify_attempt.finished is not a time like 2027-03-28T09:00:00Z')
    END
  FROM (SELECT 'started' AS name, NEW.started AS x UNION ALL SELECT 'finished', NEW.finished)
  WHERE x NOT GLOB '????-??-?? ??:??:??.?????[0-9]' AND NOT (date(substr(x, 1, 10), '+0 days') IS substr(x, 1, 10)
    AND substr(x, 11, 1) IN ('T', ' ') AND length(x) >= 16
    AND COALESCE(datetime(x) BETWEEN '1970' AND '9999-12-31 24', 0));
  UPDATE notify_attempt SET
    started = CASE WHEN NEW.started GLOB '????-??-?? ??:??:??.?????[0-9]' THEN NEW.started
      ELSE strftime('%Y-%m-%d %H:%M:%f', NEW.started) || '000' END,
    finished = CASE WHEN NEW.finished GLOB '????-??-?? ??:??:??.?????[0-9]' THEN NEW.finished
      ELSE strftime('%Y-%m-%d %H:%M:%f', NEW.finished) || '000' END
  WHERE delivery_id = NEW.delivery_id AND number = NEW.number;
END;

CREATE TRIGGER notify_transition_times AFTER UPDATE OF at
ON notify_transition WHEN NEW.at NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
BEGIN
  SELECT RAISE(ABORT, 'notify_transition.at is not a time like 2027-03-28T09:00:00Z')
  WHERE NOT (date(substr(NEW.at, 1, 10), '+0 days') IS substr(NEW.at, 1, 10)
    AND substr(NEW.at, 11, 1) IN ('T', ' ') AND length(NEW.at) >= 16
    AND COALESCE(datetime(NEW.at) BETWEEN '1970' AND '9999-12-31 24', 0));
  UPDATE notify_transition SET
    at = strftime('%Y-%m-%d %H:%M:%f', NEW.at) || '000'
  WHERE id = NEW.id;
END;

CREATE TRIGGER notify_gate_times AFTER UPDATE OF until
ON notify_gate WHEN NEW.until NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
BEGIN
  SELECT RAISE(ABORT, 'notify_gate.until is not a time like 2027-03-28T09:00:00Z')
  WHERE NOT (date(substr(NEW.until, 1, 10), '+0 days') IS substr(NEW.until, 1, 10)
    AND substr(NEW.until, 11, 1) IN ('T', ' ') AND length(NEW.until) >= 16
    AND COALESCE(datetime(NEW.until) BETWEEN '1970' AND '9999-12-31 24', 0));
  UPDATE notify_gate SET
    until = strftime('%Y-%m-%d %H:%M:%f', NEW.until) || '000'
  WHERE scope = NEW.scope AND name = NEW.name AND kind = NEW.kind;
END;

-- What is inserted in another form goes the same way.

CREATE TRIGGER notify_work_times_born AFTER INSERT ON notify_work
WHEN NEW.due_at NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
  OR NEW.eligible_at NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
BEGIN
  UPDATE notify_work SET due_at = due_at, eligible_at = eligible_at WHERE delivery_id = NEW.delivery_id;
END;

CREATE TRIGGER notify_attempt_times_born AFTER INSERT ON notify_attempt
WHEN NEW.started NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
  OR NEW.finished NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
BEGIN
  UPDATE notify_attempt SET started = started, finished = finished
  WHERE delivery_id = NEW.delivery_id AND number = NEW.number;
END;

CREATE TRIGGER notify_transition_times_born AFTER INSERT ON notify_transition
WHEN NEW.at NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
BEGIN
  UPDATE notify_transition SET at = at WHERE id = NEW.id;
END;

CREATE TRIGGER notify_gate_times_born AFTER INSERT ON notify_gate
WHEN NEW.until NOT GLOB '????-??-?? ??:??:??.?????[0-9]'
BEGIN
  UPDATE notify_gate SET until = until WHERE scope = NEW.scope AND name = NEW.name AND kind = NEW.kind;
END;
