"""Which task of which benchmark is which MuJoCo Playground environment.

The published curves name tasks in their authors' ways; the environments here have Playground's ids.
"""

# Name in DreamerV3's scores → Playground id. All of its tasks with proprioceptive observations.
DREAMERV3 = {
    "dmc_acrobot_swingup": "AcrobotSwingup",
    "dmc_ball_in_cup_catch": "BallInCup",
    "dmc_cartpole_balance": "CartpoleBalance",
    "dmc_cartpole_balance_sparse": "CartpoleBalanceSparse",
    "dmc_cartpole_swingup": "CartpoleSwingup",
    "dmc_cartpole_swingup_sparse": "CartpoleSwingupSparse",
    "dmc_cheetah_run": "CheetahRun",
    "dmc_finger_spin": "FingerSpin",
    "dmc_finger_turn_easy": "FingerTurnEasy",
    "dmc_finger_turn_hard": "FingerTurnHard",
    "dmc_hopper_hop": "HopperHop",
    "dmc_hopper_stand": "HopperStand",
    "dmc_pendulum_swingup": "PendulumSwingup",
    "dmc_reacher_easy": "ReacherEasy",
    "dmc_reacher_hard": "ReacherHard",
    "dmc_walker_run": "WalkerRun",
    "dmc_walker_stand": "WalkerStand",
    "dmc_walker_walk": "WalkerWalk",
}

# Name of TD-MPC2's result file → Playground id. Its dogs, quadrupeds and custom tasks have none.
TDMPC2 = {
    "acrobot-swingup": "AcrobotSwingup",
    "cartpole-balance": "CartpoleBalance",
    "cartpole-balance-sparse": "CartpoleBalanceSparse",
    "cartpole-swingup": "CartpoleSwingup",
    "cartpole-swingup-sparse": "CartpoleSwingupSparse",
    "cheetah-run": "CheetahRun",
    "cup-catch": "BallInCup",
    "finger-spin": "FingerSpin",
    "finger-turn-easy": "FingerTurnEasy",
    "finger-turn-hard": "FingerTurnHard",
    "fish-swim": "FishSwim",
    "hopper-hop": "HopperHop",
    "hopper-stand": "HopperStand",
    "humanoid-run": "HumanoidRun",
    "humanoid-stand": "HumanoidStand",
    "humanoid-walk": "HumanoidWalk",
    "pendulum-swingup": "PendulumSwingup",
    "reacher-easy": "ReacherEasy",
    "reacher-hard": "ReacherHard",
    "walker-run": "WalkerRun",
    "walker-stand": "WalkerStand",
    "walker-walk": "WalkerWalk",
}

# The original tasks of TD-MPC2's multi-task set mt30, in its order, which numbers the tasks.
MT30 = (
    "walker-stand",
    "walker-walk",
    "walker-run",
    "cheetah-run",
    "reacher-easy",
    "reacher-hard",
    "acrobot-swingup",
    "pendulum-swingup",
    "cartpole-balance",
    "cartpole-balance-sparse",
    "cartpole-swingup",
    "cartpole-swingup-sparse",
    "cup-catch",
    "finger-spin",
    "finger-turn-easy",
    "finger-turn-hard",
    "fish-swim",
    "hopper-stand",
    "hopper-hop",
)

# Playground id → domain and task in dm_control, which the published curves come from.
DM_CONTROL = {
    "AcrobotSwingup": ("acrobot", "swingup"),
    "BallInCup": ("ball_in_cup", "catch"),
    "CartpoleBalance": ("cartpole", "balance"),
    "CartpoleBalanceSparse": ("cartpole", "balance_sparse"),
    "CartpoleSwingup": ("cartpole", "swingup"),
    "CartpoleSwingupSparse": ("cartpole", "swingup_sparse"),
    "CheetahRun": ("cheetah", "run"),
    "FingerSpin": ("finger", "spin"),
    "FingerTurnEasy": ("finger", "turn_easy"),
    "FingerTurnHard": ("finger", "turn_hard"),
    "FishSwim": ("fish", "swim"),
    "HopperHop": ("hopper", "hop"),
    "HopperStand": ("hopper", "stand"),
    "HumanoidRun": ("humanoid", "run"),
    "HumanoidStand": ("humanoid", "stand"),
    "HumanoidWalk": ("humanoid", "walk"),
    "PendulumSwingup": ("pendulum", "swingup"),
    "ReacherEasy": ("reacher", "easy"),
    "ReacherHard": ("reacher", "hard"),
    "WalkerRun": ("walker", "run"),
    "WalkerStand": ("walker", "stand"),
    "WalkerWalk": ("walker", "walk"),
}
