BEGIN TRANSACTION;
CREATE TABLE events (
	run_id VARCHAR(64) NOT NULL, 
	sequence BIGINT NOT NULL, 
	time VARCHAR(40) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	message TEXT NOT NULL, 
	step BIGINT NOT NULL, 
	metrics TEXT NOT NULL, 
	state VARCHAR(32) NOT NULL, 
	PRIMARY KEY (run_id, sequence)
);
INSERT INTO "events" VALUES('digits-0001',1,'2026-11-17T16:15:14.768+00:00','data','bank: 1797 rows, 32 columns, ids sha256 abababababababababababababababababababababababababababababababab',0,'{}','PENDING');
INSERT INTO "events" VALUES('digits-0001',2,'2026-11-17T16:15:14.794+00:00','data','shop: 1797 rows, 32 columns, ids sha256 abababababababababababababababababababababababababababababababab',0,'{}','PENDING');
INSERT INTO "events" VALUES('digits-0001',3,'2026-11-17T16:15:14.810+00:00','party','bank warns: 3 columns are constant',0,'{}','PENDING');
INSERT INTO "events" VALUES('digits-0001',4,'2026-11-17T16:15:14.830+00:00','state','started at iteration 0',0,'{}','RUNNING');
INSERT INTO "events" VALUES('digits-0001',5,'2026-11-17T16:15:14.850+00:00','progress','checkpoint 5',5,'{"rounds": 50.0, "bytes": 1000000.0, "label releases": 1.0, "seconds": 2.5}','RUNNING');
INSERT INTO "events" VALUES('digits-0001',6,'2026-11-17T16:15:14.879+00:00','evaluation','iteration 5',5,'{"upper loss": 0.4, "test accuracy": 0.91, "rounds": 50.0}','RUNNING');
INSERT INTO "events" VALUES('digits-0001',7,'2026-11-17T16:15:14.894+00:00','party','shop left at round 52; going on with 1',5,'{}','RUNNING');
INSERT INTO "events" VALUES('digits-0001',8,'2026-11-17T16:15:14.906+00:00','state','completed',10,'{"rounds": 100.0, "bytes": 2000000.0, "label releases": 1.0, "seconds": 5.0}','COMPLETED');
INSERT INTO "events" VALUES('credit-0002',1,'2026-11-17T16:15:14.943+00:00','party','paused: shop does not answer: gone',0,'{}','PAUSED');
CREATE TABLE kept (
	run_id VARCHAR(64) NOT NULL, 
	checkpoint BIGINT NOT NULL, 
	content BLOB NOT NULL, 
	PRIMARY KEY (run_id, checkpoint)
);
INSERT INTO "kept" VALUES('digits-0001',5,X'636F6F7264696E61746F722773206F776E207374617465B76F8CEC4BC6A13C33ED9716B8720FBC2F49B86DB775F2605667F6BE07774212');
CREATE TABLE ledger_counters (
	run TEXT NOT NULL, 
	mechanism TEXT NOT NULL, 
	counts BLOB NOT NULL, 
	PRIMARY KEY (run, mechanism)
);
INSERT INTO "ledger_counters" VALUES('digits-0001','{"classes":10,"epsilon":0.5,"kind":"laplace_labels"}',X'78016362606060046210608262101F0000880009');
CREATE TABLE ledger_entries (
	run TEXT NOT NULL, 
	sequence BIGINT NOT NULL, 
	time TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	mechanism TEXT NOT NULL, 
	recipients TEXT NOT NULL, 
	first_release BIGINT NOT NULL, 
	release_count BIGINT NOT NULL, 
	records BIGINT NOT NULL, 
	epsilon DOUBLE NOT NULL, 
	delta DOUBLE NOT NULL, 
	largest_count BIGINT NOT NULL, 
	charge_hash TEXT NOT NULL, 
	counters_hash TEXT NOT NULL, 
	previous_hash TEXT NOT NULL, 
	hash TEXT NOT NULL, 
	PRIMARY KEY (run, sequence)
);
INSERT INTO "ledger_entries" VALUES('digits-0001',0,'2026-11-17T16:15:15.008601+00:00','reserve','{"classes":10,"epsilon":0.5,"kind":"laplace_labels"}','["bank", "shop"]',0,2,5,1.0,0.0,2,'2c19c35fc51488beebc6f7e1a68382d29c4c646aa58e6548da9ceae1e3ea076e','d37ecfa5444d86a9a71d23ee32cc849792b4bf6def0ab5a3fd9620ed0273b857','e2f080e262e56995a1bd8f44550fedb181de96f1fa019bfe72a8c71d34660644','dd05dd3bc697b62f6cb1e25f017959a366294ea9a080fa7dd0c2b2fcfb07845e');
CREATE TABLE ledger_heads (
	run TEXT NOT NULL, 
	length BIGINT NOT NULL, 
	hash TEXT NOT NULL, 
	records BIGINT NOT NULL, 
	budget_epsilon DOUBLE NOT NULL, 
	budget_delta DOUBLE NOT NULL, 
	PRIMARY KEY (run)
);
INSERT INTO "ledger_heads" VALUES('digits-0001',1,'dd05dd3bc697b62f6cb1e25f017959a366294ea9a080fa7dd0c2b2fcfb07845e',6,5.0,0.0);
CREATE TABLE runs (
	number INTEGER NOT NULL, 
	run_id VARCHAR(64) NOT NULL, 
	request_id VARCHAR(128) NOT NULL, 
	name VARCHAR(64) NOT NULL, 
	algorithm VARCHAR(32) NOT NULL, 
	parties TEXT NOT NULL, 
	spec_yaml TEXT NOT NULL, 
	state VARCHAR(32) NOT NULL, 
	reason TEXT NOT NULL, 
	step BIGINT NOT NULL, 
	steps BIGINT NOT NULL, 
	checkpoint BIGINT NOT NULL, 
	attempt INTEGER NOT NULL, 
	metrics TEXT NOT NULL, 
	created VARCHAR(40) NOT NULL, 
	changed VARCHAR(40) NOT NULL, 
	PRIMARY KEY (number), 
	UNIQUE (run_id), 
	UNIQUE (request_id)
);
INSERT INTO "runs" VALUES(1,'digits-0001','request-1','digits','bambi','["bank", "shop"]','# Three organisations learn to read digits together. Each holds a third of every image, the coordinator the labels.
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
','COMPLETED','',10,10,5,1,'{"rounds": 100.0, "bytes": 2000000.0, "label releases": 1.0, "seconds": 5.0, "upper loss": 0.4, "test accuracy": 0.91}','2026-11-17T16:15:14.746+00:00','2026-11-17T16:15:14.906+00:00');
INSERT INTO "runs" VALUES(2,'credit-0002','request-2','credit','asysqn','["bank", "shop"]','# Three organisations learn to read digits together. Each holds a third of every image, the coordinator the labels.
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
','PAUSED','shop does not answer: gone',0,400,0,0,'{}','2026-11-17T16:15:14.925+00:00','2026-11-17T16:15:14.943+00:00');
COMMIT;
