from scipy import sparse as sparse
from scipy import special as special
from scipy import stats as stats
