#!/bin/sh
# Compare federated training with training alone and with all records in one place, from one CSV file per hospital.
# The report in runs/hospitals has the AUC, the calibration error and the accuracy of every hospital.
exec drfl compare --data "$(dirname "$0")/hospitals" --target ill --score auc --metric calibration-error --metric accuracy \
    --algorithms FedAvg,DRFA,DualDRDM,LocalOnly,Pooled,FineTuned --seeds 5 --jobs 2 --out runs/hospitals
