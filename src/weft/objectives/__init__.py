"""What is learned: a folder for each family, one file per method or closest kin, every name here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.lazy import flat

if TYPE_CHECKING:
    from weft.objectives.control.a2c import A2C
    from weft.objectives.control.dqn import DQN
    from weft.objectives.control.dyna import Dyna
    from weft.objectives.control.dynamics import Dynamics
    from weft.objectives.control.mpc import MPC
    from weft.objectives.control.ppo import PPO
    from weft.objectives.control.reinforce import REINFORCE
    from weft.objectives.control.reps import REPS
    from weft.objectives.control.sac import SAC
    from weft.objectives.control.tabular.backward_induction import BackwardInduction
    from weft.objectives.control.tabular.epsilon_greedy import EpsilonGreedy
    from weft.objectives.control.tabular.gradient_bandit import GradientBandit
    from weft.objectives.control.tabular.linear_bandit import LinearBandit
    from weft.objectives.control.tabular.linear_program import LinearProgram
    from weft.objectives.control.tabular.neural_bandit import NeuralBandit
    from weft.objectives.control.tabular.policy_evaluation import PolicyEvaluation
    from weft.objectives.control.tabular.policy_iteration import PolicyIteration
    from weft.objectives.control.tabular.td import TD
    from weft.objectives.control.tabular.td_control import TDControl
    from weft.objectives.control.tabular.thompson import Thompson
    from weft.objectives.control.tabular.true_online_td import TrueOnlineTD
    from weft.objectives.control.tabular.ucb import UCB
    from weft.objectives.control.tabular.value_iteration import ValueIteration
    from weft.objectives.control.td3 import TD3
    from weft.objectives.densities.causal_transformer import CausalTransformer
    from weft.objectives.densities.char_rnn import CharRNN
    from weft.objectives.densities.class_conditional import ClassConditional
    from weft.objectives.densities.dequantized import Dequantized
    from weft.objectives.densities.fvbn import FVBN
    from weft.objectives.densities.gaussian import Gaussian
    from weft.objectives.densities.gaussian_mixture import GaussianMixture
    from weft.objectives.densities.histogram import Histogram
    from weft.objectives.densities.hmm import HMM
    from weft.objectives.densities.ica import ICA
    from weft.objectives.densities.independent import Independent
    from weft.objectives.densities.kernel_density import KernelDensity
    from weft.objectives.densities.lda import LDA
    from weft.objectives.densities.made import MADE
    from weft.objectives.densities.mixture import Mixture
    from weft.objectives.densities.nade import NADE
    from weft.objectives.densities.naive_bayes import NaiveBayes
    from weft.objectives.densities.nce import NCE
    from weft.objectives.densities.neural_belief import NeuralBelief
    from weft.objectives.densities.pixel_transformer import PixelTransformer
    from weft.objectives.densities.pixelcnn import PixelCNN
    from weft.objectives.densities.pixelrnn import PixelRNN
    from weft.objectives.densities.rbm import RBM
    from weft.objectives.densities.state_space import StateSpace
    from weft.objectives.densities.wavenet import WaveNet
    from weft.objectives.games.dann import DANN
    from weft.objectives.games.gan import GAN
    from weft.objectives.latent.autoencoder import Autoencoder
    from weft.objectives.latent.discrete_vae import DiscreteVAE
    from weft.objectives.latent.factor_analysis import FactorAnalysis
    from weft.objectives.latent.glo import GLO
    from weft.objectives.latent.hierarchical import HierarchicalVAE
    from weft.objectives.latent.probabilistic_pca import ProbabilisticPCA
    from weft.objectives.latent.semi_supervised import SemiSupervisedVAE
    from weft.objectives.latent.vae import VAE
    from weft.objectives.latent.vq_vae import VQVAE
    from weft.objectives.supervised.heads import Heads
    from weft.objectives.supervised.labelled import Classification, Regression
    from weft.objectives.supervised.least_squares import LeastSquares

__getattr__, __dir__, __all__ = flat(__name__, __file__)
