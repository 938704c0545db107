"""What a data-centre inventory (NetBox, Nautobot, a table) says about power, as a power tree."""
