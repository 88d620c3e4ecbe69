"""The default benchmark: jobs with unequal clients, on which algorithms are ranked by paired differences to FedAvg."""
