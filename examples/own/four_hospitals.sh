#!/bin/sh
# Four CSV files, one per hospital: who is served how well by learning together, alone, or with all records in one place?
# Writes runs/hospitals, whose report.html has the AUC, the calibration error and the accuracy of every hospital by name.
exec drfl compare --data "$(dirname "$0")/hospitals" --target ill --score auc --metric calibration-error --metric accuracy \
    --algorithms FedAvg,DRFA,DualDRDM,LocalOnly,Pooled,FineTuned --seeds 5 --jobs 2 --out runs/hospitals
