"""Train a scheduler with stable-baselines3, and judge it on workloads that it never saw.

    pip install "wattherd[rl]" sb3-contrib
    python sb3_scheduler.py [STEPS] [SEED]

One small network looks at each waiting job by itself and gives it a score: the places that jobs
stand in make no difference. 12,000 steps take a minute or two of one core.
"""

import sys

import torch
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from torch import nn

from wattherd.experiments.schedule.schedule_env import (
    NOBODY,
    Ground,
    ScheduleEnv,
    action_mask,
    judged,
    observed,
)
from wattherd.policy.schedule.turn_by_turn import JOB_FEATURES, TURNS

GROUND = Ground(gpus=16, jobs=40, longest_s=7200.0, load=1.6, budget="0:2.4kW,2h:1.8kW")
SIZE = len(JOB_FEATURES)


def allowed(mask):
    """Jobs whose GPUs are free; nobody only where there are none."""
    found = mask.astype(bool)
    found[NOBODY] = not found[:NOBODY].any()
    return found


class MaskedEnv(ScheduleEnv):
    """As sb3-contrib asks for masks."""

    def reset(self, **given):
        """As the environment's; the mask is kept."""
        seen, info = super().reset(**given)
        self.mask = info["action_mask"]
        return seen, info

    def step(self, action):
        """As the environment's; the mask is kept."""
        told = super().step(action)
        self.mask = told[-1]["action_mask"]
        return told

    def action_masks(self):
        """What may be chosen now."""
        return allowed(self.mask)


class Scores(nn.Module):
    """A score for each job; another network guesses how well things stand as a whole."""

    latent_dim_pi, latent_dim_vf = TURNS + 1, 32

    def __init__(self, size):
        super().__init__()
        self.job = nn.Sequential(nn.Linear(SIZE, 16), nn.Tanh(), nn.Linear(16, 1))
        self.whole = nn.Sequential(nn.Linear(size, 64), nn.Tanh(), nn.Linear(64, 32), nn.Tanh())

    def forward_actor(self, seen):
        """Scores (B, TURNS + 1); nobody has 0."""
        jobs = seen[:, : TURNS * SIZE].reshape(-1, TURNS, SIZE)
        scores = self.job(jobs).squeeze(-1)
        return torch.cat([scores, torch.zeros_like(scores[:, :1])], 1)

    def forward_critic(self, seen):
        """What its value is made of, (B, 32)."""
        return self.whole(seen)

    def forward(self, seen):
        """Both."""
        return self.forward_actor(seen), self.forward_critic(seen)


class JobByJob(MaskableActorCriticPolicy):
    """The scores are the preferences: no layer after them mixes jobs."""

    def _build_mlp_extractor(self):
        self.mlp_extractor = Scores(self.features_dim)

    def _build(self, rate):
        super()._build(rate)
        self.action_net = nn.Identity()
        self.optimizer = self.optimizer_class(self.parameters(), lr=rate(1))


def learned(steps, seed):
    """A trained model. Short sight (`gamma`) tells which choice was good: runs differ by luck."""
    torch.set_num_threads(1)
    model = MaskablePPO(
        JobByJob, MaskedEnv(GROUND), n_steps=1500, batch_size=300, gamma=0.97, gae_lambda=0.9,
        learning_rate=2e-3, seed=seed, device="cpu",
    )  # fmt: skip
    return model.learn(steps)


def main():
    """Learn, and judge on workloads 100 to 109."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 12_000
    model = learned(steps, int(sys.argv[2]) if len(sys.argv) > 2 else 1)

    def choose(turn):
        mask = allowed(action_mask(turn))
        action, _ = model.predict(observed(turn), action_masks=mask, deterministic=True)
        return None if action == NOBODY else int(action)

    beside = ("fifo", "fifo-first-fit", "sjf", "srtf")
    print("mean completion on workloads never seen:")
    for name, time_s in judged(choose, GROUND, range(100, 110), beside).items():
        print(f"{name:16} {time_s / 60:5.1f} min")


if __name__ == "__main__":
    main()
