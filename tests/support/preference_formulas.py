"""What each objective says about the log-probabilities of answers, in numpy and float64."""

import numpy as np


def log_sigmoid(x):
    return -np.logaddexp(0, -x)


def dpo(policy, reference, num_tokens, is_good, beta=0.3, label_smoothing=0.2):
    margin = beta * ((policy - reference) @ [1, -1])
    return -(1 - label_smoothing) * log_sigmoid(margin) - label_smoothing * log_sigmoid(-margin)


def ipo(policy, reference, num_tokens, is_good, beta=0.3):
    ratios = (policy - reference) / num_tokens
    return (ratios[:, 0] - ratios[:, 1] - 0.5 / beta) ** 2


def simpo(policy, reference, num_tokens, is_good, beta=2.5, gamma=0.4):
    mean = policy / num_tokens
    return -log_sigmoid(beta * mean[:, 0] - beta * mean[:, 1] - gamma)


def orpo(policy, reference, num_tokens, is_good, beta=0.7):
    """Returns the part of each pair; `orpo_cross_entropy` is the other."""
    probability = np.exp(policy / num_tokens)
    log_odds = np.log(probability / (1 - probability))
    return -beta * log_sigmoid(log_odds[:, 0] - log_odds[:, 1])


def orpo_cross_entropy(policy, num_tokens):
    return -policy[:, 0].sum() / num_tokens[:, 0].sum()


def kto(policy, reference, num_tokens, is_good, z, beta=0.3, good_weight=1.5, bad_weight=0.5):
    """Returns the loss of each row; z is `kto_divergence`, which has no gradient."""
    ratio = policy[:, 0] - reference[:, 0]
    value = np.where(is_good, beta * (ratio - z), beta * (z - ratio))
    weight = np.where(is_good, good_weight, bad_weight)
    return weight * (1 - 1 / (1 + np.exp(-value)))


def kto_divergence(policy, reference):
    return max(0.0, float(np.mean(policy[:, 1] - reference[:, 1])))
