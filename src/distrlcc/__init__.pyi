from distrlcc.library import Callbacks as Callbacks
from distrlcc.library import FlowResult as FlowResult
from distrlcc.library import Policy as Policy
from distrlcc.library import Scores as Scores
from distrlcc.library import evaluate as evaluate
from distrlcc.library import load_policy as load_policy
from distrlcc.library import make_env as make_env
from distrlcc.library import make_vec as make_vec
from distrlcc.library import report as report
from distrlcc.library import simulate as simulate
from distrlcc.library import train as train
from distrlcc.sim.scenario import Flow as Flow
from distrlcc.sim.scenario import Link as Link
from distrlcc.sim.scenario import Scenario as Scenario

__version__: str
