"""P³ in rsl_rl's own runner: train, save, load, export, and use what was exported.

python examples/rsl_rl/train.py                                    # about a minute on one core
python examples/rsl_rl/train.py --config examples/rsl_rl/blind.yaml
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import yaml
from hills import Hills
from rsl_rl.runners import OnPolicyRunner

HERE = Path(__file__).parent


def main() -> None:
    """Reads the config, trains, and shows that what is saved and exported acts alike."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=HERE / "p3.yaml", help="rsl_rl's config")
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--log-dir", type=Path, default=Path("runs/rsl_rl-example"))
    given = parser.parse_args()
    torch.manual_seed(1)

    config = yaml.safe_load(given.config.read_text())
    sees_ground = "extero" in config["obs_groups"]["actor"]
    env = Hills(
        given.num_envs, scan=sees_ground, velocity=config["actor"].get("velocity_group", "velocity") is not None
    )
    runner = OnPolicyRunner(env, config, str(given.log_dir), "cpu")
    before = mean_reward(runner, Hills(256, seed=7, scan=sees_ground))
    runner.learn(given.iterations, init_at_random_ep_len=True)

    # Save and load
    checkpoint = given.log_dir / "trained.pt"
    runner.save(str(checkpoint))
    again = OnPolicyRunner(env, yaml.safe_load(given.config.read_text()), None, "cpu")
    again.load(str(checkpoint))
    observations = env.get_observations()
    wanted = runner.get_inference_policy()(observations)
    assert torch.equal(again.get_inference_policy()(observations), wanted)

    # Export: raw observations in, action out; encoder and normalisers are inside
    again.export_policy_to_jit(str(given.log_dir), "policy.pt")
    deployed = torch.jit.load(given.log_dir / "policy.pt")
    inputs = [observations[name] for name in config["obs_groups"]["actor"]]
    torch.testing.assert_close(deployed(*inputs), wanted, rtol=1e-4, atol=1e-5)
    again.export_policy_to_onnx(str(given.log_dir), "policy.onnx")

    after = mean_reward(runner, Hills(256, seed=7, scan=sees_ground))
    print(f"reward of a step {before:.2f} -> {after:.2f} after {given.iterations} iterations")
    print(f"saved, loaded and exported: {checkpoint}, {given.log_dir / 'policy.pt'}, {given.log_dir / 'policy.onnx'}")


@torch.inference_mode()
def mean_reward(runner: OnPolicyRunner, env: Hills, steps: int = 200) -> float:
    """Mean reward of a step at the policy's mean, over one episode of every cart."""
    policy, total = runner.get_inference_policy(), 0.0
    for _ in range(steps):
        _, reward, _, _ = env.step(policy(env.get_observations()))
        total += reward.mean().item() / steps
    return total


if __name__ == "__main__":
    main()
