"""Long change of the rules, simulated by a test that holds their lock."""
from kbroker._core.sync cimport mutex_lock, mutex_unlock
from kbroker.security.authorizer._acl_table cimport AclRules


def hold(AclRules rules not None):
    """Make every look-up wait until ``release``, which the same thread calls."""
    with nogil:
        mutex_lock(&rules.table.lock)


def release(AclRules rules not None):
    """Release the lock, so that waiting look-ups continue."""
    with nogil:
        mutex_unlock(&rules.table.lock)
