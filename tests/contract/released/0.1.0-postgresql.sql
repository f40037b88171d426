SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE public.events (
    run_id character varying(64) NOT NULL,
    sequence bigint NOT NULL,
    "time" character varying(40) NOT NULL,
    kind character varying(16) NOT NULL,
    message text NOT NULL,
    step bigint NOT NULL,
    metrics text NOT NULL,
    state character varying(32) NOT NULL
);
CREATE TABLE public.kept (
    run_id character varying(64) NOT NULL,
    checkpoint bigint NOT NULL,
    content bytea NOT NULL
);
CREATE TABLE public.ledger_counters (
    run text NOT NULL,
    mechanism text NOT NULL,
    counts bytea NOT NULL
);
CREATE TABLE public.ledger_entries (
    run text NOT NULL,
    sequence bigint NOT NULL,
    "time" text NOT NULL,
    kind text NOT NULL,
    mechanism text NOT NULL,
    recipients text NOT NULL,
    first_release bigint NOT NULL,
    release_count bigint NOT NULL,
    records bigint NOT NULL,
    epsilon double precision NOT NULL,
    delta double precision NOT NULL,
    largest_count bigint NOT NULL,
    charge_hash text NOT NULL,
    counters_hash text NOT NULL,
    previous_hash text NOT NULL,
    hash text NOT NULL
);
CREATE TABLE public.ledger_heads (
    run text NOT NULL,
    length bigint NOT NULL,
    hash text NOT NULL,
    records bigint NOT NULL,
    budget_epsilon double precision NOT NULL,
    budget_delta double precision NOT NULL
);
CREATE TABLE public.runs (
    number integer NOT NULL,
    run_id character varying(64) NOT NULL,
    request_id character varying(128) NOT NULL,
    name character varying(64) NOT NULL,
    algorithm character varying(32) NOT NULL,
    parties text NOT NULL,
    spec_yaml text NOT NULL,
    state character varying(32) NOT NULL,
    reason text NOT NULL,
    step bigint NOT NULL,
    steps bigint NOT NULL,
    checkpoint bigint NOT NULL,
    attempt integer NOT NULL,
    metrics text NOT NULL,
    created character varying(40) NOT NULL,
    changed character varying(40) NOT NULL
);
CREATE SEQUENCE public.runs_number_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.runs_number_seq OWNED BY public.runs.number;
ALTER TABLE ONLY public.runs ALTER COLUMN number SET DEFAULT nextval('public.runs_number_seq'::regclass);
INSERT INTO public.events VALUES ('digits-0001', 1, '2026-11-17T16:15:38.541+00:00', 'data', 'bank: 1797 rows, 32 columns, ids sha256 abababababababababababababababababababababababababababababababab', 0, '{}', 'PENDING');
INSERT INTO public.events VALUES ('digits-0001', 2, '2026-11-17T16:15:38.550+00:00', 'data', 'shop: 1797 rows, 32 columns, ids sha256 abababababababababababababababababababababababababababababababab', 0, '{}', 'PENDING');
INSERT INTO public.events VALUES ('digits-0001', 3, '2026-11-17T16:15:38.554+00:00', 'party', 'bank warns: 3 columns are constant', 0, '{}', 'PENDING');
INSERT INTO public.events VALUES ('digits-0001', 4, '2026-11-17T16:15:38.557+00:00', 'state', 'started at iteration 0', 0, '{}', 'RUNNING');
INSERT INTO public.events VALUES ('digits-0001', 5, '2026-11-17T16:15:38.566+00:00', 'progress', 'checkpoint 5', 5, '{"rounds": 50.0, "bytes": 1000000.0, "label releases": 1.0, "seconds": 2.5}', 'RUNNING');
INSERT INTO public.events VALUES ('digits-0001', 6, '2026-11-17T16:15:38.578+00:00', 'evaluation', 'iteration 5', 5, '{"upper loss": 0.4, "test accuracy": 0.91, "rounds": 50.0}', 'RUNNING');
INSERT INTO public.events VALUES ('digits-0001', 7, '2026-11-17T16:15:38.586+00:00', 'party', 'shop left at round 52; going on with 1', 5, '{}', 'RUNNING');
INSERT INTO public.events VALUES ('digits-0001', 8, '2026-11-17T16:15:38.590+00:00', 'state', 'completed', 10, '{"rounds": 100.0, "bytes": 2000000.0, "label releases": 1.0, "seconds": 5.0}', 'COMPLETED');
INSERT INTO public.events VALUES ('credit-0002', 1, '2026-11-17T16:15:38.599+00:00', 'party', 'paused: shop does not answer: gone', 0, '{}', 'PAUSED');
INSERT INTO public.kept VALUES ('digits-0001', 5, '\x636f6f7264696e61746f722773206f776e207374617465b76f8cec4bc6a13c33ed9716b8720fbc2f49b86db775f2605667f6be07774212');
INSERT INTO public.ledger_counters VALUES ('digits-0001', '{"classes":10,"epsilon":0.5,"kind":"laplace_labels"}', '\x78016362606060046210608262101f0000880009');
INSERT INTO public.ledger_entries VALUES ('digits-0001', 0, '2026-11-17T16:15:38.674245+00:00', 'reserve', '{"classes":10,"epsilon":0.5,"kind":"laplace_labels"}', '["bank", "shop"]', 0, 2, 5, 1, 0, 2, '2c19c35fc51488beebc6f7e1a68382d29c4c646aa58e6548da9ceae1e3ea076e', 'd37ecfa5444d86a9a71d23ee32cc849792b4bf6def0ab5a3fd9620ed0273b857', 'e2f080e262e56995a1bd8f44550fedb181de96f1fa019bfe72a8c71d34660644', '6b54ccf371674455c20f20d0a7801eabb38d5d411029795df58213804eff1628');
INSERT INTO public.ledger_heads VALUES ('digits-0001', 1, '6b54ccf371674455c20f20d0a7801eabb38d5d411029795df58213804eff1628', 6, 5, 0);
INSERT INTO public.runs VALUES (1, 'digits-0001', 'request-1', 'digits', 'bambi', '["bank", "shop"]', '# Three organisations learn to read digits together. Each holds a third of every image, the coordinator the labels.
# Every field: parley run fields
name: digits-vfhrl
seed: 0
parties: [bank, shop, telco]
split: {lower: 0.8, upper: lower, test: 0.2}    # both levels learn from the same rows; a fifth is held out
train:
  algorithm: bambi
  problem: hyper_representation   # the embeddings are the upper problem, the classifier on top the lower one
  hypergradient: implicit
  loss: softmax
  regularisation: 0.003
  model: {kind: mlp, hidden: [64], out: 16}
  upper: {steps: 30, batch: null, optimiser: {kind: adam, step: 0.01, decay_from: 0.3}}
  lower: {solver: newton, steps: 1, warmup_steps: 2}
  implicit: {rounds: 4, newton_rounds: 4}
privacy:
  aggregation: {kind: pairwise, minimum_parties: 3}  # the coordinator sees the sum of the embeddings and no addend
  labels: {mechanism: once, epsilon: 6, budget: 6}  # parties see gradients of labels that were noised once
evaluate_every: 5
', 'COMPLETED', '', 10, 10, 5, 1, '{"rounds": 100.0, "bytes": 2000000.0, "label releases": 1.0, "seconds": 5.0, "upper loss": 0.4, "test accuracy": 0.91}', '2026-11-17T16:15:38.530+00:00', '2026-11-17T16:15:38.590+00:00');
INSERT INTO public.runs VALUES (2, 'credit-0002', 'request-2', 'credit', 'asysqn', '["bank", "shop"]', '# Three organisations learn to read digits together. Each holds a third of every image, the coordinator the labels.
# Every field: parley run fields
name: digits-vfhrl
seed: 0
parties: [bank, shop, telco]
split: {lower: 0.8, upper: lower, test: 0.2}    # both levels learn from the same rows; a fifth is held out
train:
  algorithm: bambi
  problem: hyper_representation   # the embeddings are the upper problem, the classifier on top the lower one
  hypergradient: implicit
  loss: softmax
  regularisation: 0.003
  model: {kind: mlp, hidden: [64], out: 16}
  upper: {steps: 30, batch: null, optimiser: {kind: adam, step: 0.01, decay_from: 0.3}}
  lower: {solver: newton, steps: 1, warmup_steps: 2}
  implicit: {rounds: 4, newton_rounds: 4}
privacy:
  aggregation: {kind: pairwise, minimum_parties: 3}  # the coordinator sees the sum of the embeddings and no addend
  labels: {mechanism: once, epsilon: 6, budget: 6}  # parties see gradients of labels that were noised once
evaluate_every: 5
', 'PAUSED', 'shop does not answer: gone', 0, 400, 0, 0, '{}', '2026-11-17T16:15:38.594+00:00', '2026-11-17T16:15:38.599+00:00');
SELECT pg_catalog.setval('public.runs_number_seq', 2, true);
ALTER TABLE ONLY public.events
    ADD CONSTRAINT events_pkey PRIMARY KEY (run_id, sequence);
ALTER TABLE ONLY public.kept
    ADD CONSTRAINT kept_pkey PRIMARY KEY (run_id, checkpoint);
ALTER TABLE ONLY public.ledger_counters
    ADD CONSTRAINT ledger_counters_pkey PRIMARY KEY (run, mechanism);
ALTER TABLE ONLY public.ledger_entries
    ADD CONSTRAINT ledger_entries_pkey PRIMARY KEY (run, sequence);
ALTER TABLE ONLY public.ledger_heads
    ADD CONSTRAINT ledger_heads_pkey PRIMARY KEY (run);
ALTER TABLE ONLY public.runs
    ADD CONSTRAINT runs_pkey PRIMARY KEY (number);
ALTER TABLE ONLY public.runs
    ADD CONSTRAINT runs_request_id_key UNIQUE (request_id);
ALTER TABLE ONLY public.runs
    ADD CONSTRAINT runs_run_id_key UNIQUE (run_id);
