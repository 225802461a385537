from solvers.core.operators import Diagonal as Diagonal
from solvers.core.operators import operand as operand
from solvers.core.operators import rows_scaled as rows_scaled
