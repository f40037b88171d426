#!/bin/sh
# Make the files that three organisations would hold, each in the volume of its owner:
#   train    scikit-learn's digits, a third of every image each; the coordinator has the labels
#   risk     breast cancer, ten of thirty columns each; the coordinator has the labels
#   records  rows and labels of each one's own people
set -eu
[ ! -e /federation/coordinator/train.parquet ] || exit 0
parley data split digits --parties bank,shop,telco --out /tmp/digits
parley data split breast_cancer --standardise --parties bank,shop,telco --out /tmp/cancer
for party in bank shop telco; do
  cp "/tmp/digits/$party.parquet" "/federation/$party/train.parquet"
  cp "/tmp/cancer/$party.parquet" "/federation/$party/risk.parquet"
done
python /deploy/sample_rows.py /federation/bank/records.parquet /federation/shop/records.parquet /federation/telco/records.parquet
cp /tmp/cancer/labels.parquet /federation/coordinator/risk.parquet
cp /tmp/digits/labels.parquet /federation/coordinator/train.parquet   # last: it marks that all are there
