#!/bin/sh
# Cut scikit-learn's digits into the files that three organisations would hold, each into the volume of its owner.
set -eu
[ ! -e /federation/coordinator/train.parquet ] || exit 0
parley data split digits --parties bank,shop,telco --out /tmp/digits
for party in bank shop telco; do cp "/tmp/digits/$party.parquet" "/federation/$party/train.parquet"; done
cp /tmp/digits/labels.parquet /federation/coordinator/train.parquet   # last: it marks that all are there
